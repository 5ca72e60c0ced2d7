"""Errors of a command: one message and an exit code, printed once for all ranks. Other errors keep their traceback."""

import os
import traceback
from collections.abc import Callable, Mapping

from mb_config.trainer_api import message_of
from mb_launch import report_failure
from mb_launch.trainer_api import ERROR_FOLDER, FAILED
from mb_schema.exit_codes import INTERRUPTED, exit_code


def reported(work: Callable[[], int], *, environment: Mapping[str, str] | None = None) -> int:
    """Run `work` and return its exit code, or report its error and return the exit code of the error.

    An error that a user can cause is printed as one message on stderr; any other error keeps its traceback. A process
    that a launcher monitors records both for the launcher, which prints the first error of all processes.
    """
    variables = os.environ if environment is None else environment

    def recorded_work() -> int:
        try:
            return work()
        except KeyboardInterrupt:  # pressed again, or raised by code of one rank: the others then fail
            if ERROR_FOLDER not in variables:
                raise
            return report_failure(traceback.format_exc(), exit_code=INTERRUPTED, environment=variables)

    try:
        return exit_code(
            recorded_work,
            lambda text, code: report_failure(text, exit_code=code, environment=variables),
            message=message_of,
        )
    except Exception:
        if ERROR_FOLDER not in variables:
            raise
        return report_failure(traceback.format_exc(), exit_code=FAILED, environment=variables)
