"""What a run can end with, in a file without torch: a command line knows these errors before it loads any."""


class TrainSettingsError(ValueError):
    """A setting that the loop cannot do without is missing, or one is not possible here."""


class ParallelSetupError(ValueError):
    """A parallel run misses what its ranks need to work together."""


class LossShapeError(ValueError):
    """Loss functions reported something that cannot be averaged."""


class DataIteratorError(TypeError):
    """Data were given that cannot be read one microbatch after the other."""


class DataExhaustedError(RuntimeError):
    """The data ended before the steps did."""


class ReplicaMismatchError(RuntimeError):
    """Replicas of the model hold different weights."""
