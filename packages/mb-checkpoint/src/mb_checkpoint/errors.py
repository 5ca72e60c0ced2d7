"""Errors of this package; each is also the builtin error that a caller would catch."""

from pickle import UnpicklingError


class CheckpointFolderError(OSError):
    """The folder that should receive checkpoints cannot be written."""


class CheckpointSaveError(OSError):
    """A checkpoint could not be written; the earlier ones and the trackers are as before."""


class CheckpointNotFoundError(FileNotFoundError):
    """There is no checkpoint, or not the wanted one, where one was requested."""


class CheckpointReadError(OSError):
    """A rank could not read the checkpoint that was chosen."""


class IncompleteCheckpointError(ValueError):
    """A checkpoint folder lacks files, or a file is shorter than its index says."""


class UnsafeCheckpointError(IncompleteCheckpointError, UnpicklingError):
    """A file of a checkpoint names code that reading it would execute; nothing of it was executed."""


class CheckpointShapeError(ValueError):
    """The checkpoint was made by a model of another shape."""


class CheckpointLayoutError(RuntimeError):
    """The optimizer state cannot be stored for, or read by, this parallel layout."""


class CheckpointScheduleError(ValueError):
    """The schedule of this run differs from the stored one, and neither is chosen."""


class CheckpointConfigError(ValueError):
    """The checkpoint section asks for what cannot work or is not carried out."""


class LocalStoreError(RuntimeError):
    """Local checkpoints are requested, and the library that writes them cannot be imported."""


class TrainStateError(ValueError):
    """A train_state.pt file cannot be read or written."""


class ManifestError(ValueError):
    """A manifest.json is damaged, or of a format that this version does not know."""


class DataloaderStateError(RuntimeError):
    """The position of a data loader cannot be restored."""
