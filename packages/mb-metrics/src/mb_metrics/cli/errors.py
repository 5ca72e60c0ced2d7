"""Exit codes of the command line, and messages of the errors that the user can cause."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mb_metrics.errors import MetricsError
from mb_schema.unusable_paths import unusable_path

FAILURE = 1
BAD_INPUT = 2
INTERRUPTED = 130


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
    except MetricsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT if error.bad_input else FAILURE) from error
    except OSError as error:
        message = unusable_path(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from error
