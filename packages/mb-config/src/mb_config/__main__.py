"""Program `mb-config`, also run as `python -m mb_config`."""

from mb_schema.exit_codes import run_program


def main() -> None:
    """Run the command line, which requires the extra `cli`."""
    run_program("mb-config", "mb_config.cli.app:run")


if __name__ == "__main__":
    main()
