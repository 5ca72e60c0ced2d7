"""Linear layers that can have adapters: Megatron's own, and its classes derived from Transformer Engine's."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mb_models.errors import PeftError

ROW = {
    "ColumnParallelLinear": False,
    "RowParallelLinear": True,
    "TEColumnParallelLinear": False,
    "TELayerNormColumnParallelLinear": False,
    "TERowParallelLinear": True,
}
"""Megatron's class -> whether inputs, not outputs, are split over ranks.

By name, because classes of Transformer Engine cannot be imported if it is not installed.
"""

FUSED_NORM = "TELayerNormColumnParallelLinear"
"""Class with a fused normalisation of its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPartition:
    """Partition of a linear layer over ranks, and the variant of its output."""

    row: bool
    """Inputs are split over ranks, not outputs."""
    group: Any
    """Tensor-parallel group; for an expert that of the experts."""
    of_experts: bool
    """The layer belongs to an expert, whose dispatcher communicates instead of the layer."""
    scattered: bool
    """Outside of the layer the sequence is split over the ranks."""
    own_bias: bool
    """The output includes the bias."""
    normalises: bool
    """The layer normalises its input first."""

    def run(self, answer: Any, input_: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return output, bias and the input of the matrix product, from a layer's return value and its input."""
        if not self.normalises:
            output, bias = answer
            return output, bias, input_
        if len(answer) == 3:  # its bias is added later
            return answer[0], answer[1], answer[2]
        (output, normalised), bias = answer
        return output, bias, normalised


def is_parallel(module: Any) -> bool:
    """Return whether a module is one of Megatron's parallel linear layers and has a weight."""
    is_supported = any(cls.__name__ in ROW for cls in type(module).__mro__)
    return is_supported and getattr(module, "weight", None) is not None  # a tied output layer has none


def partition_of(name: str, module: Any) -> LinearPartition:
    """Return the partition of a layer, of which `name` is the path in the chunk.

    Raises:
        PeftError: it is none of the classes of `ROW`.
    """
    kinds = [cls.__name__ for cls in type(module).__mro__ if cls.__name__ in ROW]
    if not kinds:
        raise PeftError(
            f"peft.target_modules: {name} is a {type(module).__name__}, but adapters support Megatron's parallel "
            f"layers only ({', '.join(ROW)}). Remove {name.rsplit('.', 1)[-1]} from peft.target_modules, or set "
            "model.moe_grouped_gemm=false for adapters on experts."
        )
    engine = kinds[0].startswith("TE")
    return LinearPartition(
        row=ROW[kinds[0]],
        group=module._tp_group if engine else module.tp_group,
        of_experts="experts" in name.split(".") if engine else module.explicit_expert_comm,
        scattered=bool(module.sequence_parallel),
        own_bias=_adds_bias(module, engine=engine),
        normalises=kinds[0] == FUSED_NORM,
    )


def _adds_bias(module: Any, *, engine: bool) -> bool:
    if engine:
        return bool(module.use_bias and not module.te_return_bias)
    return module.bias is not None and not module.skip_bias_add
