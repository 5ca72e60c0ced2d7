"""Exit codes of the command line, and messages of the errors that the user can cause."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mb_data.errors import DataError

FAILURE = 1
BAD_INPUT = 2
INTERRUPTED = 130

_INACCESSIBLE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
    }
)
"""Error numbers that mean that this user cannot use the path."""


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
        raise typer.Exit(INTERRUPTED) from interrupt
    except DataError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(BAD_INPUT if error.bad_input else FAILURE) from error
    except OSError as error:
        if error.errno not in _INACCESSIBLE or error.filename is None:
            raise
        path = os.fsdecode(error.filename)
        advice = "Name another path, or change who may use it."
        print(f"{path}: cannot be used ({error.strerror}). {advice}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from error
