"""Names of `megatron.bridge.data.datasets.packed_sequence`."""

from mb_trainer.bridge._names import resolver

__getattr__, __dir__ = resolver(__name__)
