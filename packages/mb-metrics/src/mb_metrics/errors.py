"""Base class of the errors that the user of the package can cause."""

from typing import ClassVar

from mb_schema.rules import RuleError


class MetricsError(Exception):
    """Base class of the errors of this package: either bad input or a failure.

    `bad_input` selects the exit code of the command line: 2 for bad input, 1 for a failure.
    """

    bad_input: ClassVar[bool] = False
    """If True, the request could not be read; otherwise it was read, and was rejected or failed."""
    internal: ClassVar[bool] = False
    """If True, the calling code is wrong or an invariant is broken: a program prints the traceback."""


class ReportWriteError(MetricsError, OSError):
    """Error raised when a report cannot be written."""


class RunFolderNameError(MetricsError, ValueError):
    """Error raised when a run folder is named by a URL."""

    bad_input = True


class SectionError(MetricsError, RuleError):
    """Error raised when a section violates rules; `problems` contains them, and the message has a line for each."""


class MissingPackageError(MetricsError, ModuleNotFoundError):
    """Error raised when a section requires a package that is not installed."""


class TrainingLogCallError(MetricsError, TypeError):
    """Arguments of Megatron-LM's and of Megatron-Bridge's `training_log` are mixed, or some are missing."""

    internal = True
