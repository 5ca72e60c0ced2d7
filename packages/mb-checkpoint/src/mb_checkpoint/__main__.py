"""Program `mb-checkpoint`, also run as `python -m mb_checkpoint`."""

import warnings

from mb_schema.exit_codes import run_program


def main() -> None:
    """Run the command line, which requires the extra `cli`."""
    # torch without numpy, which is not needed here
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    run_program("mb-checkpoint", "mb_checkpoint.cli.app:app")


if __name__ == "__main__":
    main()
