"""Names of `megatron.bridge.peft.dora`."""

from mb_trainer.bridge._names import resolver

__getattr__, __dir__ = resolver(__name__)
