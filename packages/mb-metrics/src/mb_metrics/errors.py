"""Base class of the errors that the user of the package can cause."""

from mb_schema.errors import PackageError
from mb_schema.rules import RuleError


class MetricsError(PackageError):
    """Base class of the errors of this package: either bad input or a failure.

    `bad_input` selects the exit code of the command line: 2 for bad input, 1 for a failure.
    """


class ReportWriteError(MetricsError, OSError):
    """Error raised when a report cannot be written."""


class RunFolderNameError(MetricsError, ValueError):
    """Error raised when a run folder is named by a URL."""

    bad_input = True


class DamagedRunFileError(MetricsError, ValueError):
    """Error raised when a file to which a resumed run appends, or which names its tracker's run, cannot be read."""

    bad_input = True


class SectionError(MetricsError, RuleError):
    """Error raised when a section violates rules; `problems` contains them, and the message has a line for each."""


class MissingPackageError(MetricsError, ModuleNotFoundError):
    """Error raised when a section requires a package that is not installed."""


class TrainingLogCallError(MetricsError, TypeError):
    """Arguments of Megatron-LM's and of Megatron-Bridge's `training_log` are mixed, or some are missing."""

    internal = True
