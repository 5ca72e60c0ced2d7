"""Exceptions of the training loop. Does not import torch, so that a command line can catch them cheaply."""

from mb_schema.errors import PackageError


class LoopError(PackageError):
    """Base class of the errors of this package: either bad input or a failure."""


class TrainSettingsError(LoopError, ValueError):
    """A required setting is missing, or a setting is not possible in this run."""


class ParallelSetupError(LoopError, ValueError):
    """A parallel run lacks a process group or a schedule."""

    internal = True


class LossShapeError(LoopError, ValueError):
    """A loss function reported a value that cannot be averaged."""

    internal = True


class DataIteratorError(LoopError, TypeError):
    """The data is not an iterator over microbatches."""


class ForwardStepError(LoopError, TypeError):
    """A forward step or its loss function returned something else than the schedule needs."""

    internal = True


class DataExhaustedError(LoopError, RuntimeError):
    """The data ended before the last step."""


class ReplicaMismatchError(LoopError, RuntimeError):
    """Replicas of the model hold different weights."""


class NonFiniteLossError(LoopError, RuntimeError):
    """A loss is NaN or infinite."""
