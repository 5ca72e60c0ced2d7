"""Messages of errors with a list of problems, as the commands print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mb_config.cli.listing import Colours, counted, listing
from mb_schema import exit_codes
from mb_schema.exit_codes import FAILURE
from mb_schema.rules import Problem


@runtime_checkable
class RejectedConfig(Protocol):
    """Error of violated rules, of any package."""

    @property
    def problems(self) -> Sequence[Problem | str]:
        """Every problem, or a line of text for each."""


def message_of(error: BaseException) -> tuple[str, int] | None:
    """Return the message and the exit code of an error that a user can cause, or None for any other error."""
    if isinstance(error, RejectedConfig):
        problems = [each for each in error.problems if not isinstance(each, str)]
        if len(problems) == len(error.problems):
            return problem_lines(problems), FAILURE
    return exit_codes.message_of(error)


def problem_lines(problems: Sequence[Problem]) -> str:
    """Return the number of problems, and the problems as `check` lists them."""
    head = f"the configuration has {counted(len(problems), 'problem')}"
    return "\n".join([head, *listing(problems, Colours(False))])
