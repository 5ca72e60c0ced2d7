"""Names of `megatron.bridge.recipes.utils.optimizer_utils`."""

from mb_trainer.bridge._names import resolver

__getattr__, __dir__ = resolver(__name__)
