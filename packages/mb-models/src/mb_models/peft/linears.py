"""The linear layers that can have adapters: Megatron's own, and those that it derives from Transformer Engine's."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mb_models.peft.config import PeftError

ROW = {
    "ColumnParallelLinear": False,
    "RowParallelLinear": True,
    "TEColumnParallelLinear": False,
    "TELayerNormColumnParallelLinear": False,
    "TERowParallelLinear": True,
}
"""Class of Megatron's -> whether inputs, not outputs, are spread over ranks. By name: Transformer Engine's cannot be
imported where it is not installed."""

FUSED_NORM = "TELayerNormColumnParallelLinear"
"""The class that normalises its input before it multiplies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPartition:
    """How a linear layer is spread over ranks, and what else it does."""

    row: bool
    """Inputs are spread over ranks, not outputs."""
    group: Any
    """The tensor-parallel group; that of the experts in an expert."""
    of_experts: bool
    """The dispatcher of its experts exchanges what their layers do not."""
    scattered: bool
    """Outside of the layer the sequence is spread over the ranks."""
    own_bias: bool
    """Its output has the bias in it."""
    normalises: bool
    """It normalises its input first."""

    def run(self, answer: Any, input_: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return output, bias and what the weight was multiplied with, of a layer's answer to an input."""
        if not self.normalises:
            output, bias = answer
            return output, bias, input_
        if len(answer) == 3:  # its bias is added later
            return answer[0], answer[1], answer[2]
        (output, normalised), bias = answer
        return output, bias, normalised


def is_parallel(module: Any) -> bool:
    """Whether a module is one of Megatron's parallel linear layers and has a weight of its own."""
    known = any(cls.__name__ in ROW for cls in type(module).__mro__)
    return known and getattr(module, "weight", None) is not None  # a tied output layer has none


def partition_of(name: str, module: Any) -> LinearPartition:
    """Return the place of a layer, of which `name` is the path in the chunk.

    Raises:
        PeftError: it is none of the classes of `ROW`, or experts are spread over tensor-parallel ranks.
    """
    kinds = [cls.__name__ for cls in type(module).__mro__ if cls.__name__ in ROW]
    if not kinds:
        raise PeftError(
            f"peft.target_modules: {name} is a {type(module).__name__}, and adapters know Megatron's parallel layers "
            f"alone ({', '.join(ROW)}). Take {name.rsplit('.', 1)[-1]} out of peft.target_modules, or set "
            "model.moe_grouped_gemm=false for adapters on experts."
        )
    engine = kinds[0].startswith("TE")
    partition = LinearPartition(
        row=ROW[kinds[0]],
        group=module._tp_group if engine else module.tp_group,
        of_experts="experts" in name.split(".") if engine else module.explicit_expert_comm,
        scattered=bool(module.sequence_parallel),
        own_bias=_adds_bias(module, engine=engine),
        normalises=kinds[0] == FUSED_NORM,
    )
    if partition.of_experts and partition.group.size() > 1:
        raise PeftError(
            f"peft.target_modules: {name} is spread over {partition.group.size()} expert-tensor-parallel ranks, "
            "because nobody adds up their gradients of an adapter. Set model.expert_tensor_parallel_size=1."
        )
    return partition


def _adds_bias(module: Any, *, engine: bool) -> bool:
    if engine:
        return bool(module.use_bias and not module.te_return_bias)
    return module.bias is not None and not module.skip_bias_add
