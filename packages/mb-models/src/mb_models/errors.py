"""Errors of the package, and their base class. No torch."""

from collections.abc import Iterable

from mb_schema.errors import PackageError
from mb_schema.rules import Problem


class ModelsError(PackageError):
    """Base class of the errors of this package: either bad input or a failure."""


class ModelConfigError(ModelsError, ValueError):
    """A model section that cannot be built; `problems` holds one line for each reason."""

    def __init__(self, problems: Iterable[str | Problem]) -> None:
        self.problems = tuple(item if isinstance(item, str) else item.line for item in problems)
        super().__init__("\n".join(self.problems))


class EvaluationMetricsError(ModelsError, TypeError):
    """The user's `compute_metrics` returned something that cannot be averaged."""

    internal = True


class BatchError(ModelsError, ValueError):
    """A microbatch that the model cannot process."""
