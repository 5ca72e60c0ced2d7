"""Exit codes of the command line, and messages of the errors that the user can cause."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from mb_config.cli.listing import Colours, counted, listing
from mb_schema.rules import Problem
from mb_schema.unusable_paths import unusable_path

DONE = 0
REJECTED = 1
BAD_INPUT = 2
INTERRUPTED = 130

ExitCodes = Callable[[Callable[[], int]], int]
"""Function that runs a command and returns its exit code, or prints its error and returns that of the error."""


@runtime_checkable
class RejectedConfig(Protocol):
    """Error of violated rules, of any package."""

    @property
    def problems(self) -> Sequence[Problem | str]:
        """Every problem, or a line of text for each."""


@runtime_checkable
class PackageError(Protocol):
    """Error of a package, whose base class determines the exit code of a command."""

    bad_input: bool
    """If True, the request could not be read; otherwise it was read, and was rejected or failed."""
    internal: bool
    """If True, the calling code is wrong, and the traceback is kept."""


def print_error(text: str, code: int) -> int:
    """Print the message of an error on stderr and return its exit code."""
    print(f"error: {text}", file=sys.stderr)
    return code


def exit_code(command: Callable[[], int], report: Callable[[str, int], int] = print_error) -> int:
    """Run a command and return its exit code, or report its error and return what `report` returns.

    An error that a user can cause is one message; any other exception is raised.

    Args:
        command: Returns its exit code.
        report: Called with the message and the exit code of an error.
    """
    try:
        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        found = message_of(error)
        if found is None:
            raise
        return report(*found)


def message_of(error: Exception) -> tuple[str, int] | None:
    """Return the message and the exit code of an error that a user can cause, or None for any other error."""
    if isinstance(error, RejectedConfig):
        problems = [each for each in error.problems if not isinstance(each, str)]
        if len(problems) == len(error.problems):
            return problem_lines(problems), REJECTED
    if isinstance(error, PackageError) and not error.internal:
        return str(error), BAD_INPUT if error.bad_input else REJECTED
    if isinstance(error, OSError) and (unusable := unusable_path(error)) is not None:
        return unusable, BAD_INPUT
    return None


def problem_lines(problems: Sequence[Problem]) -> str:
    """Return the number of problems, and the problems as `check` lists them."""
    head = f"the configuration has {counted(len(problems), 'problem')}"
    return "\n".join([head, *listing(problems, Colours(False))])
