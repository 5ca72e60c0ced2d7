"""Exit codes of programs, and the messages of the errors that a user can cause. Standard library only."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib import import_module

from mb_schema.errors import PackageError
from mb_schema.paths import printable
from mb_schema.standard_streams import open_standard_streams
from mb_schema.unusable_paths import unusable_path

DONE = 0
FAILURE = 1
BAD_INPUT = 2
INTERRUPTED = 130

_EXTRA = frozenset({"click", "rich", "typer", "yaml"})
"""Modules that the extra `cli` of a package installs."""


def message_of(error: BaseException) -> tuple[str, int] | None:
    """Return the message and the exit code of an error that a user can cause, or None for any other error."""
    if isinstance(error, PackageError) and not error.internal:
        return str(error), BAD_INPUT if error.bad_input else FAILURE
    if isinstance(error, OSError) and (unusable := unusable_path(error)) is not None:
        return unusable, BAD_INPUT
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        text = printable(error.object)
        return (
            f"{text[:200]}: is not UTF-8, and cannot be written to a file of text. Rename the file or folder.",
            BAD_INPUT,
        )
    return None


def signal_name(number: int) -> str:
    """Return the name of a signal; most real-time signals have none, and are "signal 40"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def print_error(text: str, code: int) -> int:
    """Print the message of an error on stderr and return its exit code."""
    print(f"error: {text}", file=sys.stderr)
    return code


def exit_code(
    command: Callable[[], int],
    report: Callable[[str, int], int] = print_error,
    *,
    message: Callable[[Exception], tuple[str, int] | None] = message_of,
) -> int:
    """Run a command and return its exit code, or report its error and return what `report` returns.

    An error that a user can cause is one message; any other exception is raised.

    Args:
        command: Returns its exit code.
        report: Called with the message and the exit code of an error.
        message: Returns the message and the exit code of an error, or None if it is to be raised.
    """
    try:
        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        found = message(error)
        if found is None:
            raise
        return report(*found)


def run_program(distribution: str, application: str) -> None:
    """Run the command line of a package; without its extra `cli`, print the command that installs it and exit with 2.

    Args:
        distribution: Name of the package and of its program, such as "mb-data".
        application: Function that runs the command line, as "module:name".
    """
    open_standard_streams()
    module, _, name = application.partition(":")
    try:
        getattr(import_module(module), name)()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        text = f'needs {missing}, which is not installed. Install it: pip install "{distribution}[cli]"'
        print(f"{distribution}: {text}", file=sys.stderr)
        sys.exit(BAD_INPUT)
