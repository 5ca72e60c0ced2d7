"""Names of `megatron.bridge.training.tokenizers.config`."""

from mb_trainer.bridge._names import resolver

__getattr__, __dir__ = resolver(__name__)
