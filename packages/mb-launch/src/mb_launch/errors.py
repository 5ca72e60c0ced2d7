"""Base class of the errors of the package."""

from typing import ClassVar


class LauncherError(Exception):
    """Base class of the errors of this package: either bad input or a failure.

    `bad_input` selects the exit code of a command line: 2 for bad input, 1 for a failure.
    """

    bad_input: ClassVar[bool] = False
    """If True, the request could not be read; otherwise it was read, and was rejected or failed."""
    internal: ClassVar[bool] = False
    """If True, the calling code is wrong or an invariant is broken: a program prints the traceback."""


class SlurmJobError(LauncherError, ValueError):
    """An option of a Slurm job has a bad value, or the job would reveal a secret."""

    bad_input = True


class ClustersFileError(LauncherError, ValueError):
    """The file of clusters cannot be read, or holds an unknown key or cluster."""

    bad_input = True


class JobNotFoundError(LauncherError, LookupError):
    """The run folder holds no number of a Slurm job, or no log."""

    bad_input = True


class ExecutorFileError(LauncherError, ValueError):
    """The executor of NeMo-Run cannot be read or built: an unknown kind or field, a bad value, or a secret."""

    bad_input = True


class ExtraMissingError(LauncherError, ImportError):
    """A command needs an extra that is not installed."""

    bad_input = True


class SlurmCommandError(LauncherError, RuntimeError):
    """A command of Slurm is missing or failed."""


class LaunchCheckError(LauncherError, RuntimeError):
    """The check before the launch rejected the run."""


class NemoRunError(LauncherError, RuntimeError):
    """NeMo-Run could not submit or find a job."""


class OpenFilesError(LauncherError, OSError):
    """This process may open too few files for several ranks."""

    bad_input = True
