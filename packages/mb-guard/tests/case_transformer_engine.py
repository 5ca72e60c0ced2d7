"""Program of `test_attention.py`: Megatron's attention on a stand-in of Transformer Engine's.

Prints the sinks of this rank, and whether Megatron's gradient norm counts them on the second of two ranks.
"""

import importlib.abc
import importlib.machinery
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

import mb_guard


class Attention(torch.nn.Module):
    """Sinks as in `transformer_engine.pytorch.DotProductAttention` 2.20."""

    def __init__(self, num_attention_heads: int, tp_size: int, **_others: object) -> None:
        super().__init__()
        self.register_parameter(
            "softmax_offset", torch.nn.Parameter(torch.zeros(num_attention_heads // tp_size))
        )


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of `transformer_engine` and all that Megatron imports from it."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "transformer_engine":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return MagicMock(__version__="2.20.2", DotProductAttention=Attention)

    def exec_module(self, module):
        return None


if __name__ == "__main__":
    if sys.argv[1] == "guarded":
        mb_guard.install(quiet=True)
    sys.meta_path.insert(0, StandIn())
    from megatron.core.extensions.transformer_engine import TEDotProductAttention
    from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=4,
        softmax_type="learnable",
        tensor_model_parallel_size=2,
    )
    second = SimpleNamespace(size=lambda: 2, rank=lambda: 1)
    attention = TEDotProductAttention(
        *(config, 1, AttnMaskType.causal, "self"),
        pg_collection=SimpleNamespace(tp=second, cp=second, hcp=None),
    )
    counted = param_is_not_tensor_parallel_duplicate(attention.softmax_offset, second)
    sys.stdout.write(f"{attention.softmax_offset.numel()} {counted}\n")
