"""LoRA, canonical LoRA and DoRA on Megatron's parallel linear layers, its own and Transformer Engine's.

The class of a layer is extended in place, so that its own parameters keep their names (and checkpoints of the model
fit); adapters are below `<layer>.adapter.`. Shape letters: R rank of the adapter, I inputs and O outputs on this rank.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    get_cuda_rng_tracker,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from mb_models.peft.config import CanonicalLoRA, DoRA, LoRA, PeftError
from mb_models.peft.linears import place_of


class Adapter(torch.nn.Module):
    """scale * B A x for one linear layer, or for one of the layers that are fused in it."""

    def __init__(self, linear: Any, *, section: LoRA, outputs: int) -> None:
        super().__init__()
        weight, place = linear.weight, linear.place
        self.row = place.row
        self.scale = section.alpha / section.dim
        self.dropout = section.dropout
        self.group = place.group
        self.exchanges = not place.of_experts  # with experts, their dispatcher exchanges
        self.scattered = place.scattered and self.exchanges
        a_RI = torch.empty(section.dim, weight.shape[1], dtype=weight.dtype, device=weight.device)
        b_OR = torch.zeros(outputs, section.dim, dtype=weight.dtype, device=weight.device)
        # A is sharded along the input in a row-parallel layer: a draw for each rank; else one for all of them
        with get_cuda_rng_tracker().fork() if self.row else nullcontext():
            torch.nn.init.kaiming_uniform_(a_RI, a=math.sqrt(5))
        self.lora_a, self.lora_b = torch.nn.Parameter(a_RI), torch.nn.Parameter(b_OR)
        mark(self.lora_a, linear, sharded=1 if self.row else None)
        mark(self.lora_b, linear, sharded=None if self.row else 0)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the layer's output; exchanges R numbers a token where the layer itself exchanges."""
        if self.dropout and self.training:
            with get_cuda_rng_tracker().fork() if self.row or self.scattered else nullcontext():
                x = F.dropout(x, self.dropout)
        return F.linear(self._exchange(F.linear(x, self.lora_a)), self.lora_b) * self.scale

    def delta(self) -> Tensor:
        """Return the change of the weight, [O, I]."""
        return (self.lora_b @ self.lora_a) * self.scale

    def _exchange(self, hidden: Tensor) -> Tensor:
        if not self.exchanges:
            return hidden
        if self.row:
            exchange = (
                reduce_scatter_to_sequence_parallel_region
                if self.scattered
                else reduce_from_tensor_model_parallel_region
            )
        else:
            exchange = (
                gather_from_sequence_parallel_region
                if self.scattered
                else copy_to_tensor_model_parallel_region
            )
        exchanged: Tensor = exchange(hidden, group=self.group)
        return exchanged


def mark(parameter: torch.nn.Parameter, linear: Any, *, sharded: int | None) -> None:
    """Tell Megatron how a parameter is spread: its optimizer, gradient norm and data parallelism read this."""
    marked: Any = parameter
    marked.tensor_model_parallel = sharded is not None
    marked.partition_dim, marked.partition_stride = -1 if sharded is None else sharded, 1
    # replicated, and fed by a part of the sequence: finalize_model_grads adds the ranks' gradients up
    marked.sequence_parallel = linear.place.scattered and sharded is None and not linear.place.of_experts
    if hasattr(linear.weight, "allreduce"):
        marked.allreduce = linear.weight.allreduce


class Adapted:
    """Goes before the class of a linear layer that has adapters."""

    def equip(self: Any, section: LoRA) -> None:
        """Add the adapters."""
        leaf_is_glu = self.glu_halves
        parts = {"main": self.weight.shape[0]}
        if isinstance(section, CanonicalLoRA):
            parts = slices(self) or parts
        self.joins_groups = "q" in parts
        self.adapter = torch.nn.ModuleDict(
            {name: Adapter(self, section=section, outputs=outputs) for name, outputs in parts.items()}
        )
        self.glu_adapter = leaf_is_glu and "main" in parts
        if isinstance(section, DoRA):
            magnitude = torch.nn.Parameter(lengths(self, self.weight.detach()))
            mark(magnitude, self, sharded=None if self.place.row else 0)
            self.adapter.register_parameter("magnitude", magnitude)

    def forward(self: Any, input_: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """Return output and bias as the layer does, with the adapters' part in the output."""
        answer = super().forward(input_, *args, **options)  # type: ignore[misc]
        output, bias, multiplied = self.place.run(answer, input_)
        if not hasattr(self, "adapter"):
            return output, bias
        added = joined(self, [adapter(multiplied) for adapter in self.adapter.values()], dim=-1)
        if not hasattr(self.adapter, "magnitude"):
            return output + added, bias
        own = self.bias if self.place.own_bias else None
        with torch.no_grad():
            length = lengths(self, self.weight + change(self))
        scaled = ((output if own is None else output - own) + added) * (self.adapter.magnitude / length)
        return (scaled if own is None else scaled + own), bias

    def sharded_state_dict(
        self: Any, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Return the layer's own entries and those of the adapters, which any tensor-parallel size can load."""
        found = super().sharded_state_dict(prefix, sharded_offsets, metadata)  # type: ignore[misc]
        state: dict[str, Any] = {key: value for key, value in found.items() if ".adapter." not in key}
        if not hasattr(self, "adapter"):
            return state
        row = self.place.row
        values, axes = {}, {}
        for key, value in self.adapter.state_dict(keep_vars=True).items():
            values[key] = value
            if key.endswith("lora_a") and row:
                axes[key] = 1
            elif not key.endswith("lora_a") and not row:
                axes[key] = 0
        below = f"{prefix}adapter."
        groups = {"tp_group": self.place.group, "dp_cp_group": (metadata or {}).get("dp_cp_group")}
        added = make_sharded_tensors_for_checkpoint(values, below, axes, sharded_offsets, **groups)
        if self.glu_adapter:
            for key in (f"{below}main.lora_b", f"{below}magnitude"):
                if key in added:
                    added[key] = apply_swiglu_sharded_factory(added[key], sharded_offsets)
        state.update(added)
        return state


@cache
def adapted(cls: Hashable) -> type:
    """Return the class of layers of a class that have adapters."""
    base = cast(type, cls)
    return type(f"Adapted{base.__name__}", (Adapted, base), {})


def slices(linear: Any) -> dict[str, int] | None:
    """Return the outputs on this rank of each layer that is fused in one, or None where none are."""
    config = linear.config
    if linear.glu_halves:
        half = linear.weight.shape[0] // 2
        return {"gate": half, "up": half}
    if linear.fuses_qkv:
        size = linear.place.group.size()
        groups = config.num_query_groups // size
        queries = config.num_attention_heads // size
        return {
            "q": queries * config.kv_channels,
            "k": groups * config.kv_channels,
            "v": groups * config.kv_channels,
        }
    return None


def joined(linear: Any, parts: Sequence[Tensor], *, dim: int) -> Tensor:
    """Put the parts of a fused layer together along `dim`; query, key and value group by group."""
    if len(parts) == 1:
        return parts[0]
    if not linear.joins_groups:
        return torch.cat(list(parts), dim=dim)
    groups = linear.config.num_query_groups // linear.place.group.size()
    dim %= parts[0].dim()
    grouped = [part.unflatten(dim, (groups, -1)) for part in parts]  # type: ignore[no-untyped-call]
    return torch.cat(grouped, dim=dim + 1).flatten(dim, dim + 1)


def change(linear: Any) -> Tensor:
    """Return what the adapters add to a layer's weight on this rank, [O, I]."""
    return joined(linear, [adapter.delta() for adapter in linear.adapter.values()], dim=0)


def lengths(linear: Any, weight_OI: Tensor) -> Tensor:
    """Return the length of each row of the whole weight, [O]; collective where rows are spread over ranks."""
    squares = weight_OI.float().pow(2).sum(1)
    if linear.place.row and linear.place.group.size() > 1:
        torch.distributed.all_reduce(squares, group=linear.place.group)
    return squares.sqrt().to(weight_OI.dtype)


def install(chunks: Sequence[Any], section: LoRA) -> None:
    """Freeze the chunks and give the layers that the section names adapters. All ranks call it, seeded alike.

    Raises:
        PeftError: the rank is not positive; no layer has such a name; a layer is none of Megatron's parallel layers;
            or experts are spread over tensor-parallel ranks.
    """
    if section.dim < 1:
        raise PeftError(
            f"peft.dim: must be 1 or more, is {section.dim}, because it is a rank. Set it higher."
        )
    found = False
    for chunk in chunks:
        chunk.requires_grad_(False)
        for name, module in list(chunk.named_modules()):
            leaf = name.rsplit(".", 1)[-1]
            if leaf not in section.target_modules:
                continue
            module.place = place_of(name, module)
            found = True
            cls = type(module)
            module.__class__ = adapted(cls)  # type: ignore[arg-type]  # classes are hashable
            module.glu_halves = leaf == "linear_fc1" and module.config.gated_linear_unit
            module.fuses_qkv = leaf == "linear_qkv"
            module.equip(section)
        if hasattr(chunk, "embedding") and chunk.config.recompute_granularity is not None:
            # what is computed again gets gradients only through an input that asks for one
            chunk.embedding.register_forward_hook(lambda _module, _inputs, output: output.requires_grad_())
    if not found:
        raise PeftError(
            f"peft.target_modules: {section.target_modules} name no layer on this rank, because none ends so. "
            "Use linear_qkv, linear_proj, linear_fc1, linear_fc2."
        )


def adapted_layers(chunks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the layers that have adapters, with their names."""
    for chunk in chunks:
        for name, module in chunk.named_modules():
            if isinstance(module, Adapted) and hasattr(module, "adapter"):
                yield name, module


@torch.no_grad()
def measure(chunks: Sequence[Any]) -> None:
    """Set DoRA's trained lengths to those of the weights as they are; collective over tensor-parallel groups."""
    for _, layer in adapted_layers(chunks):
        layer.adapter.magnitude.copy_(lengths(layer, layer.weight))


@torch.no_grad()
def merge(chunks: Sequence[Any]) -> None:
    """Write the adapters into the weights and remove them; collective over tensor-parallel groups for DoRA."""
    for _, layer in list(adapted_layers(chunks)):
        whole = layer.weight + change(layer)
        if hasattr(layer.adapter, "magnitude"):
            whole = whole * (layer.adapter.magnitude / lengths(layer, whole))[:, None]
        layer.weight.copy_(whole)
        del layer.adapter
