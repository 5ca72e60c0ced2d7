"""Exceptions of this package: one base class; each also subclasses the builtin exception that a caller would catch."""

from pickle import UnpicklingError
from typing import ClassVar

from mb_checkpoint._rules import RuleError


class CheckpointError(Exception):
    """Base class of the errors of this package: either bad input or a failure.

    `bad_input` selects the exit code of a program: 2 for bad input, 1 for a failure. The program
    `mb-checkpoint`, whose input are checkpoints, also exits with 2 if one is missing or cannot be read.
    """

    bad_input: ClassVar[bool] = False
    """If True, the request could not be read; otherwise it was read, and was rejected or failed."""
    internal: ClassVar[bool] = False
    """If True, the calling code is wrong or an invariant is broken: a program prints the traceback."""


class CheckpointFolderError(CheckpointError, OSError):
    """The destination folder of checkpoints is not writable."""


class CheckpointSaveError(CheckpointError, OSError):
    """A checkpoint could not be written; earlier checkpoints and the trackers are unchanged."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A requested checkpoint does not exist."""


class CheckpointReadError(CheckpointError, OSError):
    """A rank could not read the selected checkpoint."""


class IncompleteCheckpointError(CheckpointError, ValueError):
    """A checkpoint folder lacks files, or a file is shorter than its index requires."""


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


class TrainStateError(CheckpointError, ValueError):
    """A train_state.pt file cannot be read or written."""


class ManifestError(CheckpointError, ValueError):
    """A manifest.json is damaged, or has a format that this version does not support."""


class DataloaderStateError(CheckpointError, RuntimeError):
    """The position of a data loader cannot be restored."""
