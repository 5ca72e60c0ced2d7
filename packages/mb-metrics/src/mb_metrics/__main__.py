"""Program `mb-metrics`, also run as `python -m mb_metrics`."""

from mb_schema.exit_codes import run_program


def main() -> None:
    """Run the command line, which requires the extra `cli`."""
    run_program("mb-metrics", "mb_metrics.cli.app:app")


if __name__ == "__main__":
    main()
