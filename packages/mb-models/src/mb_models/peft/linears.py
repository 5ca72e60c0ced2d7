"""Linear layers that can have adapters: Megatron's, its classes derived from Transformer Engine's, and torch's."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mb_models.errors import PeftError

ROW = {
    "ColumnParallelLinear": False,
    "RowParallelLinear": True,
    "TEColumnParallelLinear": False,
    "TELayerNormColumnParallelLinear": False,
    "TERowParallelLinear": True,
    "TEColumnParallelGroupedLinear": False,
    "TERowParallelGroupedLinear": True,
}
"""Megatron's class -> whether inputs, not outputs, are split over ranks.

By name, because classes of Transformer Engine cannot be imported if it is not installed.
"""

COPIED = "TELinear"
"""Class of which every tensor-parallel rank has the complete layer, such as the down projections of latent
attention."""

FUSED_NORM = "TELayerNormColumnParallelLinear"
"""Class with a fused normalisation of its input."""

GROUPED = ("TEColumnParallelGroupedLinear", "TERowParallelGroupedLinear")
"""Classes with the linear layers of all experts of a rank, whose weights are `weight0`, `weight1`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPartition:
    """Partition of a linear layer over ranks, and the variant of its output."""

    row: bool
    """Inputs are split over ranks, not outputs."""
    copied: bool
    """Nothing is split: every rank has the complete layer, and does not communicate."""
    group: Any
    """Tensor-parallel group; for an expert that of the experts; None: the layer is torch's."""
    of_experts: bool
    """The layer belongs to an expert, whose dispatcher communicates instead of the layer."""
    scattered: bool
    """Outside of the layer the sequence is split over the ranks."""
    own_bias: bool
    """The output includes the bias."""
    normalises: bool
    """The layer normalises its input first."""

    @property
    def sharded_output(self) -> bool:
        """Whether outputs are split over ranks."""
        return not (self.row or self.copied)

    def run(self, answer: Any, input_: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return output, bias and the input of the matrix product, from a layer's return value and its input."""
        if isinstance(answer, Tensor):  # torch's
            return answer, None, input_
        if not self.normalises:
            output, bias = answer
            return output, bias, input_
        if len(answer) == 3:  # its bias is added later
            return answer[0], answer[1], answer[2]
        (output, normalised), bias = answer
        return output, bias, normalised


def is_plain(module: Any) -> bool:
    """Return whether a module is `torch.nn.Linear`; subclasses may not compute with their weight alone."""
    return type(module) is torch.nn.Linear


def is_grouped(module: Any) -> bool:
    """Return whether a module has the linear layers of all experts of a rank."""
    return any(cls.__name__ in GROUPED for cls in type(module).__mro__)


def is_supported(module: Any) -> bool:
    """Return whether a module can have adapters, and has a weight."""
    is_megatron = any(cls.__name__ in (*ROW, COPIED) for cls in type(module).__mro__)
    weight = "weight0" if is_grouped(module) else "weight"
    # a tied output layer has none
    return (is_megatron or is_plain(module)) and getattr(module, weight, None) is not None


def partition_of(name: str, module: Any) -> LinearPartition:
    """Return the partition of a layer, of which `name` is the path in the chunk.

    Raises:
        PeftError: adapters do not support it.
    """
    if is_plain(module):
        return LinearPartition(
            row=False,
            copied=True,
            group=None,
            of_experts=False,
            scattered=False,
            own_bias=module.bias is not None,
            normalises=False,
        )
    kinds = [cls.__name__ for cls in type(module).__mro__ if cls.__name__ in (*ROW, COPIED)]
    if not kinds:
        raise PeftError(
            f"peft.target_modules: {name} is a {type(module).__name__}, but adapters support Megatron's linear layers "
            f"({', '.join((*ROW, COPIED))}) and torch.nn.Linear only. Remove {name.rsplit('.', 1)[-1]} from "
            "peft.target_modules."
        )
    if is_grouped(module):
        return _grouped_partition(name, module, row=ROW[kinds[0]])
    engine, copied = kinds[0].startswith("TE"), kinds[0] == COPIED
    return LinearPartition(
        row=ROW.get(kinds[0], False),
        copied=copied,
        group=module._tp_group if engine else module.tp_group,
        of_experts="experts" in name.split("."),
        # Transformer Engine switches it off in a layer that every rank has
        scattered=bool(module.config.sequence_parallel if copied else module.sequence_parallel),
        own_bias=_adds_bias(module, engine=engine),
        normalises=kinds[0] == FUSED_NORM,
    )


def _grouped_partition(name: str, module: Any, *, row: bool) -> LinearPartition:
    """Return the partition of the layers of all experts of a rank.

    Raises:
        PeftError: their weights are one tensor, or they are not computed as linear layers with two halves.
    """
    unsupported = {
        "moe_single_grouped_weight": "their weights are one tensor",
        "use_transformer_engine_op_fuser": "they are computed in one kernel",
        "moe_mlp_glu_interleave_size": "rows of gate and up projection are in turn",
    }
    for setting, reason in unsupported.items():
        value = getattr(module.config, setting, None)
        if value:
            raise PeftError(
                f"peft.target_modules: {name} cannot have adapters with model.transformer.{setting}={value}, because "
                f"{reason}. Leave it out, or remove {name.rsplit('.', 1)[-1]} from peft.target_modules."
            )
    return LinearPartition(
        row=row,
        copied=False,
        group=module._tp_group,
        of_experts=True,
        scattered=bool(module.config.sequence_parallel),
        own_bias=bool(module.use_bias and not module.te_return_bias),
        normalises=False,
    )


def _adds_bias(module: Any, *, engine: bool) -> bool:
    if engine:
        return bool(module.use_bias and not module.te_return_bias)
    return module.bias is not None and not module.skip_bias_add
