"""Program `mb-data`, also run as `python -m mb_data`."""

import sys
from importlib import import_module

_MODULES_OF_EXTRA = frozenset({"click", "rich", "typer", "yaml"})
_BAD_INPUT = 2


def main() -> None:
    """Run the command line; without the extra `cli`, print the command that installs it and exit with 2."""
    try:
        import_module("mb_data.cli.app").app()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _MODULES_OF_EXTRA:
            raise
        print(
            f'mb-data: needs {missing}, which is not installed. Install it: pip install "mb-data[cli]"',
            file=sys.stderr,
        )
        sys.exit(_BAD_INPUT)


if __name__ == "__main__":
    main()
