"""Names of `megatron.bridge.training.comm_overlap`."""

from mb_trainer.bridge._names import resolver

__getattr__, __dir__ = resolver(__name__)
