"""Errors of the package, and their base class. No torch."""

from collections.abc import Iterable
from typing import ClassVar

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


class HuggingFaceError(ModelsError, ValueError):
    """The folder or the model cannot be converted without changing what it computes."""


class OutputExistsError(ModelsError, FileExistsError):
    """The output folder of a conversion holds files."""


class HuggingFaceFolderError(HuggingFaceError):
    """The folder holds no model in the Hugging Face format, or its config.json cannot be read."""

    bad_input: ClassVar[bool] = True


class PeftError(ModelsError, ValueError):
    """Adapters that are not supported as configured."""


class FixedValueError(ModelsError, ValueError):
    """A value that this version does not support of a field that another trainer has."""
