"""Program `mb-config`, also run as `python -m mb_config`."""

import sys
from importlib import import_module

_MODULES_OF_EXTRA = frozenset({"click", "rich", "typer"})
_BAD_INPUT = 2


def main() -> None:
    """Run the command line; without the extra `cli`, print the command that installs it and exit with 2."""
    try:
        import_module("mb_config.cli.app").run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _MODULES_OF_EXTRA:
            raise
        print(
            f'mb-config: needs {missing}, which is not installed. Install it: pip install "mb-config[cli]"',
            file=sys.stderr,
        )
        sys.exit(_BAD_INPUT)


if __name__ == "__main__":
    main()
