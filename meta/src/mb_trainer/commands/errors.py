"""Translation of user errors into one message on stderr and an exit code. Other errors keep their traceback."""

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from mb_config import ConfigError
from mb_config._unusable_paths import unusable_path
from mb_config.cli_errors import BAD_INPUT, INTERRUPTED, REJECTED, problem_lines
from mb_launch import report_failure
from mb_launch.failures import ERROR_FOLDER, FAILED


@runtime_checkable
class PackageError(Protocol):
    """Error of a package, whose base class determines the exit code of a command."""

    bad_input: bool
    """If True, the request could not be read; otherwise it was read, and was rejected or failed."""
    internal: bool
    """If True, the calling code is wrong, and the traceback is kept."""


def reported(work: Callable[[], int], *, environment: Mapping[str, str] | None = None) -> int:
    """Run `work` and return its exit code, or report its error and return the exit code of the error.

    An error that a user can cause is printed as one message on stderr; any other error keeps its traceback. A process
    that a launcher monitors records both for the launcher, which prints the first error of all processes.
    """
    environment = os.environ if environment is None else environment
    try:
        return work()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        found = message_of(error)
        if found is not None:
            text, code = found
            return report_failure(text, exit_code=code, environment=environment)
        if ERROR_FOLDER not in environment:
            raise
        return report_failure(traceback.format_exc(), exit_code=FAILED, environment=environment)


def message_of(error: Exception) -> tuple[str, int] | None:
    """Return the message and the exit code of an error that a user can cause, or None for any other error."""
    if isinstance(error, ConfigError):
        return problem_lines(error.problems), REJECTED
    if isinstance(error, PackageError) and not error.internal:
        return str(error), BAD_INPUT if error.bad_input else REJECTED
    if isinstance(error, OSError) and (unusable := unusable_path(error)) is not None:
        return unusable, BAD_INPUT
    return None
