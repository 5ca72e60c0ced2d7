"""Base class of the errors of the package, and the suggestion for a misspelled name."""

from collections.abc import Iterable
from difflib import get_close_matches

from mb_schema.errors import PackageError


class LauncherError(PackageError):
    """Base class of the errors of this package: either bad input or a failure."""


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


def nearest(word: object, known: Iterable[object]) -> str:
    """Return a sentence with the known name that is most similar to a word, or with all of them."""
    names = [str(name) for name in known]
    near = get_close_matches(str(word), names, n=1)
    return f"Did you mean {near[0]}?" if near else f"Known: {', '.join(names)}."
