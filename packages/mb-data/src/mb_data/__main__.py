"""Program `mb-data`, also run as `python -m mb_data`."""

from mb_schema.exit_codes import run_program


def main() -> None:
    """Run the command line, which requires the extra `cli`."""
    run_program("mb-data", "mb_data.cli.app:app")


if __name__ == "__main__":
    main()
