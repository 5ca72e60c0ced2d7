"""Names of `megatron.bridge.training.mixed_precision`."""

from mb_trainer.bridge._names import resolver

__getattr__, __dir__ = resolver(__name__)
