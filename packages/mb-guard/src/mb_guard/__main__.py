"""Program `mb-guard`, also run as `python -m mb_guard`."""

from mb_schema.exit_codes import run_program


def main() -> None:
    """Run the command line, which requires the extra `cli`."""
    run_program("mb-guard", "mb_guard.cli:app")


if __name__ == "__main__":
    main()
