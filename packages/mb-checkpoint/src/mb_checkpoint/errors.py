"""Exceptions of this package; each one subclasses the builtin exception that a caller would catch."""

from pickle import UnpicklingError


class CheckpointFolderError(OSError):
    """The destination folder of checkpoints is not writable."""


class CheckpointSaveError(OSError):
    """A checkpoint could not be written; earlier checkpoints and the trackers are unchanged."""


class CheckpointNotFoundError(FileNotFoundError):
    """A requested checkpoint does not exist."""


class CheckpointReadError(OSError):
    """A rank could not read the selected checkpoint."""


class IncompleteCheckpointError(ValueError):
    """A checkpoint folder lacks files, or a file is shorter than its index requires."""


class UnsafeCheckpointError(IncompleteCheckpointError, UnpicklingError):
    """A file of a checkpoint names code that reading it would execute; no code was executed."""


class CheckpointShapeError(ValueError):
    """The checkpoint belongs to a model of another shape."""


class CheckpointLayoutError(RuntimeError):
    """The optimizer state cannot be stored for, or read by, this parallel layout."""


class CheckpointScheduleError(ValueError):
    """The schedule of this run differs from the stored one, and the configuration selects neither."""


class CheckpointConfigError(ValueError):
    """The checkpoint section has invalid or unsupported values."""


class LocalStoreError(RuntimeError):
    """Local checkpoints are enabled, and the library that writes them cannot be imported."""


class TrainStateError(ValueError):
    """A train_state.pt file cannot be read or written."""


class ManifestError(ValueError):
    """A manifest.json is damaged, or has a format that this version does not support."""


class DataloaderStateError(RuntimeError):
    """The position of a data loader cannot be restored."""
