"""Errors of the package, and their base class. No torch."""

from collections.abc import Iterable
from typing import ClassVar

from mb_schema.rules import Problem


class ModelsError(Exception):
    """Base class of the errors of this package: either bad input or a failure.

    `bad_input` selects the exit code of a command line: 2 for bad input, 1 for a failure.
    """

    bad_input: ClassVar[bool] = False
    """If True, the request could not be read; otherwise it was read, and was rejected or failed."""
    internal: ClassVar[bool] = False
    """If True, the calling code is wrong or an invariant is broken: a program prints the traceback."""


class ModelConfigError(ModelsError, ValueError):
    """A model section that cannot be built; `problems` holds one line for each reason."""

    def __init__(self, problems: Iterable[str | Problem]) -> None:
        self.problems = tuple(item if isinstance(item, str) else item.line for item in problems)
        super().__init__("\n".join(self.problems))


class BatchError(ModelsError, ValueError):
    """A microbatch that the model cannot process."""
