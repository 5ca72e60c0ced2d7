"""Names of `megatron.bridge.models.mamba.mamba_provider`."""

from mb_trainer.bridge._names import resolver

__getattr__, __dir__ = resolver(__name__)
