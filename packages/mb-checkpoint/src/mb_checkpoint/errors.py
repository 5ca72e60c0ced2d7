"""Exceptions of this package: one base class; each also subclasses the builtin exception that a caller would catch."""

import os
from collections.abc import Sequence
from pathlib import PurePath
from pickle import UnpicklingError
from typing import ClassVar

from mb_schema.errors import PackageError
from mb_schema.rules import RuleError


class CheckpointError(PackageError):
    """Base class of the errors of this package: either bad input or a failure.

    `bad_input` selects the exit code of a program: 2 for bad input, 1 for a failure. The program
    `mb-checkpoint` also exits with 2 if there is no checkpoint where the user named one.
    """


class CheckpointFolderError(CheckpointError, OSError):
    """The destination folder of checkpoints is not writable."""


class CheckpointSaveError(CheckpointError, OSError):
    """A checkpoint could not be written; earlier ones are unchanged, and no tracker names an incomplete one."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A requested checkpoint does not exist."""


class CheckpointSourceError(CheckpointNotFoundError):
    """A folder that the user named as the source of weights holds no checkpoint."""

    bad_input: ClassVar[bool] = True


class WeightConversionError(CheckpointError, RuntimeError):
    """Weights in another program's format could not be converted."""


class DamagedCheckpointError(CheckpointError):
    """Files of a checkpoint are damaged or missing.

    Attributes:
        problem: The problem, without the path and without advice.
    """

    def __init__(self, message: str, *, problem: str | None = None) -> None:
        super().__init__(message)
        self.problem = problem or message


class NoIntactCheckpointError(DamagedCheckpointError, CheckpointNotFoundError):
    """A folder holds checkpoints, and all of them are damaged or incomplete; the message has the reasons."""


class CheckpointReadError(CheckpointError, OSError):
    """A rank could not read the selected checkpoint."""


class IncompleteCheckpointError(DamagedCheckpointError, ValueError):
    """A checkpoint folder lacks files, or a file is shorter than its index requires."""


class DamagedWhileReadError(DamagedCheckpointError):
    """Data files differ from the manifest, which was found while they were read into the model."""


class UnsafeCheckpointError(IncompleteCheckpointError, UnpicklingError):
    """A file of a checkpoint names code that reading it would execute; no code was executed."""


class CheckpointShapeError(CheckpointError, ValueError):
    """The checkpoint belongs to a model of another shape."""


class CheckpointLayoutError(CheckpointError, RuntimeError):
    """The optimizer state cannot be stored for, or read by, this parallel layout."""


class CheckpointScheduleError(CheckpointError, ValueError):
    """The schedule of this run differs from the stored one, and the configuration selects neither."""


class CheckpointConfigError(CheckpointError, ValueError):
    """The checkpoint section has invalid or unsupported values."""


class ManagerStateError(CheckpointError, ValueError):
    """A custom checkpoint manager loaded a step without restoring the counters of the run."""


class CheckpointRulesError(CheckpointConfigError, RuleError):
    """The checkpoint section violates rules; `problems` contains them, and the message has a line for each."""


class LocalStoreError(CheckpointError, RuntimeError):
    """Local checkpoints are enabled, and the library that writes them cannot be imported."""


class StorageError(CheckpointError, OSError):
    """A storage for copies of checkpoints cannot be opened, read or written."""


class TrainStateError(DamagedCheckpointError, ValueError):
    """A train_state.pt file cannot be read or written."""


class ManifestError(DamagedCheckpointError, ValueError):
    """A manifest.json is damaged, or has a format that this version does not support."""


class DataloaderStateError(CheckpointError, RuntimeError):
    """The position of a data loader cannot be restored."""


MAX_SHOWN = 5
"""Number of problems that a message lists."""


def first_of(problems: Sequence[str], separator: str = "; ") -> str:
    """Return the first problems of a list as part of a message, and the number of further ones."""
    shown = separator.join(problems[:MAX_SHOWN])
    return f"{shown}{separator}and {len(problems) - MAX_SHOWN} more" if len(problems) > MAX_SHOWN else shown


def cause_of(error: BaseException) -> str:
    """Return an error as part of a message: that of the system with its file and without its number."""
    if isinstance(error, OSError) and error.strerror is not None:
        file = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
        return f"{error.strerror}{file}"
    return f"{type(error).__name__}: {error}"


def file_problem(error: DamagedCheckpointError | OSError, name: str) -> str:
    """Return why a file of a checkpoint cannot be used, as one line without its folder.

    Args:
        error: Error of reading it, or of another file that the error names.
        name: Name of the file.
    """
    if isinstance(error, DamagedCheckpointError):
        return f"{name} {error.problem}"
    file = name if error.filename is None else PurePath(os.fsdecode(error.filename)).name
    return f"{file} cannot be read ({error.strerror or error})"
