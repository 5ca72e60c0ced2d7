"""Program `mb-launch`, also run as `python -m mb_launch`."""

from mb_schema.exit_codes import run_program


def main() -> None:
    """Run the command line, which requires the extra `cli`."""
    run_program("mb-launch", "mb_launch.cli.app:app")


if __name__ == "__main__":
    main()
