"""Linear layers with adapters: Megatron's, including Transformer Engine's, and torch's.

The class of a layer is replaced in place, so that its own parameters keep their names (and checkpoints of the model
stay loadable); adapters are below `<layer>.adapter.`. Shape letters: I inputs and O outputs on this rank.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from mb_models.peft.adapter import Adapter, set_parallel_attributes
from mb_models.peft.targets import MAIN

if TYPE_CHECKING:
    from mb_models.peft.config import LoRA


class AdaptedLinear:
    """Mixin for linear layers with adapters; precedes the layer's own class in the method resolution order."""

    adapter_enabled = True
    """Whether the adapters' update is added to the output."""

    def enable_adapter_layers(self) -> None:
        """Add the adapters' update to the output again."""
        self.adapter_enabled = True

    def disable_adapter_layers(self) -> None:
        """Compute the output of the layer alone."""
        self.adapter_enabled = False

    def add_adapters(self: Any, section: LoRA, parts: Sequence[str], *, name: str) -> None:
        """Add the adapters of the layer, `name` in the complete model, or of the parts that are fused in it."""
        sizes = {MAIN: self.weight.shape[0]} if MAIN in parts else fused_part_sizes(self) or {}
        self.part_sizes = sizes
        self.joins_groups = "q" in sizes
        self.adapter = torch.nn.ModuleDict(
            {
                part: Adapter(self, section=section, outputs=size, name=f"{name}.{part}")
                for part, size in sizes.items()
                if part in parts
            }
        )
        # never called, but with any hook below it torch.nn.TransformerEncoderLayer calls its layers in evaluation, too,
        # rather than compute with their weights
        self.adapter.register_forward_pre_hook(_no_effect)
        self.glu_adapter = self.glu_halves and MAIN in parts
        if section.has_magnitudes:
            magnitude = torch.nn.Parameter(row_norms(self, self.weight.detach()))
            set_parallel_attributes(magnitude, self, sharded=0 if self.partition.sharded_output else None)
            self.adapter.register_parameter("magnitude", magnitude)

    def forward(self: Any, input_: Tensor, *args: Any, **options: Any) -> Any:
        """Return output, and bias, like the layer itself, with the adapters' update added to the output."""
        answer = super().forward(input_, *args, **options)  # type: ignore[misc]
        output, bias = self.add_update(*self.partition.run(answer, input_))
        return output if isinstance(answer, Tensor) else (output, bias)

    def add_update(
        self: Any, output: Tensor, bias: Tensor | None, multiplied: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return the layer's output with the adapters' update for the input `multiplied`, and its bias."""
        if not (self.adapter_enabled and hasattr(self, "adapter")):
            return output, bias
        outputs = {name: adapter(multiplied) for name, adapter in self.adapter.items()}
        added = join_parts(self, zero_fill_parts(self, outputs, dim=-1), dim=-1)
        if not hasattr(self.adapter, "magnitude"):
            return output + added, bias
        own_bias = self.bias if self.partition.own_bias else None
        with torch.no_grad():
            length = row_norms(self, self.weight + weight_delta(self))
        scaled = ((output if own_bias is None else output - own_bias) + added) * (
            self.adapter.magnitude / length
        )
        return (scaled if own_bias is None else scaled + own_bias), bias


def _no_effect(_module: Any, _args: Any) -> None:
    pass


class AdaptedMegatronLinear(AdaptedLinear):
    """Mixin for Megatron's layers, whose adapters are sharded like them; others are stored as replicated."""

    def sharded_state_dict(
        self: Any, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Return the layer's own entries and those of the adapters, which any tensor-parallel size can load."""
        base_state = super().sharded_state_dict(prefix, sharded_offsets, metadata)  # type: ignore[misc]
        state: dict[str, Any] = {key: value for key, value in base_state.items() if ".adapter." not in key}
        if not hasattr(self, "adapter"):
            return state
        row, sharded_output = self.partition.row, self.partition.sharded_output
        values, axes = {}, {}
        for key, value in self.adapter.state_dict(keep_vars=True).items():
            values[key] = value
            if key.endswith("lora_a") and row:
                axes[key] = 1
            elif not key.endswith("lora_a") and sharded_output:
                axes[key] = 0
        below = f"{prefix}adapter."
        if self.by_layer and sharded_offsets:
            # Megatron stores one tensor for all layers and experts, which has gaps if only some have adapters
            for word, (_, number, _) in zip(("layer", "expert"), sharded_offsets, strict=False):
                below += f"{word}_{number}."
            sharded_offsets = ()
        groups = {"tp_group": self.partition.group, "dp_cp_group": (metadata or {}).get("dp_cp_group")}
        added = make_sharded_tensors_for_checkpoint(values, below, axes, sharded_offsets, **groups)
        if self.glu_adapter:
            for key in (f"{below}main.lora_b", f"{below}magnitude"):
                if key in added:
                    added[key] = apply_swiglu_sharded_factory(added[key], sharded_offsets)
        added = {f"{prefix}adapter.{key.removeprefix(below)}": value for key, value in added.items()}
        state.update(added)
        return state


@cache
def adapted_class(cls: Hashable) -> type:
    """Return the subclass of a layer's class with adapters."""
    base = cast(type, cls)
    mixin = AdaptedMegatronLinear if hasattr(base, "sharded_state_dict") else AdaptedLinear
    return type(f"Adapted{base.__name__}", (mixin, base), {})


def fused_part_sizes(linear: Any) -> dict[str, int] | None:
    """Return the outputs on this rank of each layer that is fused in one, or None if none are."""
    config = linear.config
    if linear.glu_halves:
        half = linear.weight.shape[0] // 2
        return {"gate": half, "up": half}
    if linear.fuses_qkv:
        size = linear.partition.group.size()
        groups = config.num_query_groups // size
        queries = config.num_attention_heads // size
        return {
            "q": queries * config.kv_channels * (1 + bool(getattr(config, "attention_output_gate", False))),
            "k": groups * config.kv_channels,
            "v": groups * config.kv_channels,
        }
    return None


def join_parts(linear: Any, parts: Sequence[Tensor], *, dim: int) -> Tensor:
    """Concatenate the parts of a fused layer along `dim`; query, key and value group by group."""
    if len(parts) == 1:
        return parts[0]
    if not linear.joins_groups:
        return torch.cat(list(parts), dim=dim)
    groups = linear.config.num_query_groups // linear.partition.group.size()
    dim %= parts[0].dim()
    grouped = [part.unflatten(dim, (groups, -1)) for part in parts]  # type: ignore[no-untyped-call]
    return torch.cat(grouped, dim=dim + 1).flatten(dim, dim + 1)


def zero_fill_parts(linear: Any, tensors: Mapping[str, Tensor], *, dim: int) -> list[Tensor]:
    """Return one tensor for each part of a layer: the given ones, and zeros for parts without adapters."""
    like = next(iter(tensors.values()))
    filled = []
    for name, size in linear.part_sizes.items():
        shape = list(like.shape)
        shape[dim] = size
        filled.append(tensors[name] if name in tensors else like.new_zeros(shape))
    return filled


def weight_delta(linear: Any) -> Tensor:
    """Return the adapters' update of a layer's weight on this rank, [O, I]."""
    deltas = {name: adapter.delta() for name, adapter in linear.adapter.items()}
    return join_parts(linear, zero_fill_parts(linear, deltas, dim=0), dim=0)


def joined_pair(layer: Any) -> tuple[Tensor, Tensor]:
    """Return one pair A [R, I], B [O, R] with the update of all parts, one below the other, for one tensor elsewhere.

    B is block-diagonal, and R the sum of the ranks. A part without adapters has zeros, so that R is the same for all
    layers of a kind.
    """
    if "main" in layer.adapter:
        return layer.adapter["main"].lora_a, layer.adapter["main"].lora_b
    like = next(iter(layer.adapter.values()))
    empty_a = torch.zeros_like(like.lora_a)
    pairs = [
        (layer.adapter[name].lora_a, layer.adapter[name].lora_b)
        if name in layer.adapter
        else (empty_a, like.lora_b.new_zeros(size, like.lora_b.shape[1]))
        for name, size in layer.part_sizes.items()
    ]
    joined: Tensor = torch.block_diag(*[b for _, b in pairs])  # type: ignore[no-untyped-call]
    return torch.cat([a for a, _ in pairs]), joined


def scale_of(layer: Any) -> float:
    """Return the factor of the product B A of a layer's adapters."""
    scale: float = next(iter(layer.adapter.values())).scale
    return scale


def row_norms(linear: Any, weight_OI: Tensor) -> Tensor:
    """Return the norm of each row of the complete weight, [O]; collective if rows are split over ranks."""
    squares = weight_OI.float().pow(2).sum(1)
    if linear.partition.row and linear.partition.group.size() > 1:
        torch.distributed.all_reduce(squares, group=linear.partition.group)
    return squares.sqrt().to(weight_OI.dtype)


def adapted_layers(chunks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the layers with adapters, with their names."""
    for chunk in chunks:
        for name, module in chunk.named_modules():
            if isinstance(module, AdaptedLinear) and hasattr(module, "adapter"):
                yield name, module
