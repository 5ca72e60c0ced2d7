"""Exit codes of the command line, and messages of the errors that the user can cause."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mb_launch.errors import LauncherError

_FAILURE, _BAD_INPUT, _INTERRUPTED = 1, 2, 130


@contextmanager
def exit_codes() -> Iterator[None]:
    """Print an error that the user can cause to stderr and exit with its code; other exceptions keep their traceback.

    Raises:
        typer.Exit: with the exit code of the error.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED) from interrupt
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(_BAD_INPUT if error.bad_input else _FAILURE) from error
    except OSError as error:
        print(f"error: {error.filename}: cannot be used ({error.strerror}).", file=sys.stderr)
        raise typer.Exit(_BAD_INPUT) from error
