"""Exceptions of the training loop. Does not import torch, so that a command line can catch them cheaply."""


class TrainSettingsError(ValueError):
    """A required setting is missing, or a setting is not possible in this run."""


class ParallelSetupError(ValueError):
    """A parallel run lacks a process group or a schedule."""


class LossShapeError(ValueError):
    """A loss function reported a value that cannot be averaged."""


class DataIteratorError(TypeError):
    """The data is not an iterator over microbatches."""


class DataExhaustedError(RuntimeError):
    """The data ended before the last step."""


class ReplicaMismatchError(RuntimeError):
    """Replicas of the model hold different weights."""
