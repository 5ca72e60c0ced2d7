"""Program `mb-plan`, also run as `python -m mb_plan`."""

from mb_schema.exit_codes import run_program


def main() -> None:
    """Run the command line, which requires the extra `cli`."""
    run_program("mb-plan", "mb_plan.cli.app:run")


if __name__ == "__main__":
    main()
