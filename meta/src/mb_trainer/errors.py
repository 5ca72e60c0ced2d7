"""Errors of the trainer itself: one base class, which records whether the request could be read."""

from mb_schema.errors import PackageError


class TrainerError(PackageError):
    """Base class of the trainer's errors: either bad input (exit code 2) or a failure (exit code 1)."""


class RunFolderError(TrainerError, ValueError):
    """Error for a run folder that holds a run with other settings, or that another trainer uses."""


class NoCheckpointError(TrainerError, FileNotFoundError):
    """Error for a run without a checkpoint to read."""

    bad_input = True


class UnwritableFolderError(TrainerError, OSError):
    """Error for a run folder that cannot be written."""


class OutputNameError(TrainerError, ValueError):
    """Error for an output folder whose path is not UTF-8."""

    bad_input = True


class UserCodeError(TrainerError, ValueError):
    """Code of the user that the configuration leaves without a purpose."""


class RankLeftError(TrainerError, RuntimeError):
    """Code of the user ended one rank of a run by SystemExit, while the others were training."""

    internal = True
