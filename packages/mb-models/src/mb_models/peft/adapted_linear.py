"""Linear layers with adapters: Megatron's, including Transformer Engine's, and torch's.

The class of a layer is replaced in place, so that its own parameters keep their names (and checkpoints of the model
stay loadable); adapters are below `<layer>.adapter.`. Shape letters: I inputs and O outputs on this rank, T tokens of
its experts, sorted by expert.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from mb_models.peft.adapter import Adapter, set_parallel_attributes, share_over_experts
from mb_models.peft.linears import GROUPED
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
        self.part_sizes = sizes_of_parts(self, parts)
        self.joins_groups = "q" in self.part_sizes
        self.adapter = adapters_of_parts(self, section, parts, name=name)
        # never called, but with any hook below it torch.nn.TransformerEncoderLayer calls its layers in evaluation, too,
        # rather than compute with their weights
        self.adapter.register_forward_pre_hook(_no_effect)
        self.glu_adapter = self.glu_halves and MAIN in parts
        if section.has_magnitudes:
            self.adapter.register_parameter("magnitude", initial_magnitude(self))

    @property
    def magnitude(self: Any) -> Tensor | None:
        """Return DoRA's magnitudes of the layer's outputs, [O], or None."""
        return getattr(self.adapter, "magnitude", None)

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
        if self.magnitude is None:
            return output + added, bias
        own_bias = self.bias if self.partition.own_bias else None
        with torch.no_grad():
            length = row_lengths(self, self.weight + weight_delta(self))
        scaled = ((output if own_bias is None else output - own_bias) + added) * (self.magnitude / length)
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
        if hasattr(self, "adapter"):
            values = self.adapter.state_dict(keep_vars=True)
            added = sharded_adapters(self, values, f"{prefix}adapter.", sharded_offsets, metadata)
            state.update({f"{prefix}adapter.{name}": value for name, value in added.items()})
        return state


def sharded_adapters(
    layer: Any, values: Mapping[str, Tensor], below: str, sharded_offsets: Any, metadata: Any
) -> dict[str, Any]:
    """Return Megatron's sharded tensors of a layer's adapters, or of one expert's, by name below `adapter.`.

    `below` is the start of their keys in the checkpoint.
    """
    row, sharded_output = layer.partition.row, layer.partition.sharded_output
    axes = {}
    for name in values:
        if name.endswith("lora_a") and row:
            axes[name] = 1
        elif not name.endswith("lora_a") and sharded_output:
            axes[name] = 0
    if layer.by_layer and sharded_offsets:
        # Megatron stores one tensor for all layers and experts, which has gaps if only some have adapters
        for word, (_, number, _) in zip(("layer", "expert"), sharded_offsets, strict=False):
            below += f"{word}_{number}."
        sharded_offsets = ()
    groups = {"tp_group": layer.partition.group, "dp_cp_group": (metadata or {}).get("dp_cp_group")}
    sharded = make_sharded_tensors_for_checkpoint(dict(values), below, axes, sharded_offsets, **groups)
    if layer.glu_adapter:
        for key in (f"{below}main.lora_b", f"{below}magnitude"):
            if key in sharded:
                sharded[key] = apply_swiglu_sharded_factory(sharded[key], sharded_offsets)
    return {key.removeprefix(below): value for key, value in sharded.items()}


class AdaptedGroupedLinear(AdaptedMegatronLinear):
    """Mixin for the linear layers of all experts of a rank, with one pair for all of them, or one for each.

    A pair for all is the same on all expert-parallel ranks. In a checkpoint it is one tensor, and pairs for each have
    the keys of layers of single experts.
    """

    def add_adapters(self: Any, section: LoRA, parts: Sequence[str], *, name: str) -> None:
        """Add the adapters of the experts, as the section shares them. Magnitudes are those of each expert."""
        experts = experts_of_layer(self)
        ranks = self._pg_collection.ep
        self.part_sizes, self.joins_groups = sizes_of_parts(experts[0], parts), False
        self.glu_adapter = self.glu_halves and MAIN in parts
        self.shares_adapters = section.share_expert_adapters
        if self.shares_adapters:
            self.adapter = adapters_of_parts(experts[0], section, parts, name=name)
            for parameter in self.adapter.parameters():
                share_over_experts(parameter, ranks)
        else:
            parent, _, leaf = name.rpartition(".")
            first = ranks.rank() * self.num_gemms
            # the names, and so the initial values, of experts that are layers of their own
            names = [f"{parent}.local_experts.{first + number}.{leaf}" for number in range(self.num_gemms)]
            self.adapter = torch.nn.ModuleDict(
                {
                    str(expert.number): adapters_of_parts(expert, section, parts, name=each)
                    for expert, each in zip(experts, names, strict=True)
                }
            )
        if section.has_magnitudes:
            for expert in experts:
                self.adapter.register_parameter(f"magnitude{expert.number}", initial_magnitude(expert))

    def forward(self: Any, input_: Tensor, m_splits: Any, *args: Any, **options: Any) -> Any:
        """Return output, [T, O], and biases of the experts, with the update for the tokens of each, `m_splits`."""
        output, biases = super(AdaptedLinear, self).forward(input_, m_splits, *args, **options)  # type: ignore[misc]
        if not (self.adapter_enabled and hasattr(self, "adapter")):
            return output, biases
        experts = experts_of_layer(self)
        if self.shares_adapters and experts[0].magnitude is None:
            return experts[0].add_update(output, biases, input_)
        sizes = [int(size) for size in m_splits]
        parts = zip(experts, torch.split(output, sizes), torch.split(input_, sizes), strict=True)
        return torch.cat([expert.add_update(part, None, tokens)[0] for expert, part, tokens in parts]), biases

    def sharded_state_dict(
        self: Any, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Return the layer's own entries and those of the adapters, for any tensor- and expert-parallel size."""
        base: Any = super(AdaptedMegatronLinear, self)
        state: dict[str, Any] = base.sharded_state_dict(prefix, sharded_offsets, metadata)
        if not hasattr(self, "adapter"):
            return state
        groups = self._pg_collection
        single = (metadata or {}).get("singleton_local_shards", False)
        if self.shares_adapters:
            pairs = {
                name: value
                for name, value in self.adapter.state_dict(keep_vars=True).items()
                if not name.startswith("magnitude")
            }
            shared = sharded_adapters(self, pairs, f"{prefix}adapter.shared.", sharded_offsets, metadata)
            for name, value in shared.items():
                value.replica_id = (groups.ep.rank(), value.replica_id[1], groups.expt_dp.rank())
                state[f"{prefix}adapter.{name}"] = value
        for expert in experts_of_layer(self):
            own = {} if self.shares_adapters else expert.adapter.state_dict(keep_vars=True)
            names = {name: f"{expert.number}.{name}" for name in own}
            if expert.magnitude is not None:
                own["magnitude"], names["magnitude"] = expert.magnitude, f"magnitude{expert.number}"
            number, count = (
                groups.ep.rank() * self.num_gemms + expert.number,
                groups.ep.size() * self.num_gemms,
            )
            offsets = sharded_offsets if single else (*sharded_offsets, (len(sharded_offsets), number, count))
            below = f"{number}.{prefix}adapter." if single else f"{prefix}adapter."
            for name, value in sharded_adapters(self, own, below, offsets, metadata).items():
                value.replica_id = (*value.replica_id[:2], groups.expt_dp.rank())
                state[f"{prefix}adapter.{names[name]}"] = value
        return state


class GroupedExpert(AdaptedLinear):
    """View of the layer of one expert in a layer of all experts of a rank. It is no module, and has no state."""

    joins_groups = fuses_qkv = False

    def __init__(self, layer: Any, number: int) -> None:
        self.layer, self.number = layer, number

    @property
    def weight(self) -> Tensor:
        """Return the expert's weight, [O, I]."""
        weight: Tensor = getattr(self.layer, f"weight{self.number}")
        return weight

    @property
    def bias(self) -> Tensor | None:
        """Return the expert's bias, [O], or None."""
        return getattr(self.layer, f"bias{self.number}", None)

    @property
    def adapter(self) -> Any:  # type: ignore[override]  # a module has it as an attribute
        """Return the adapters of the expert's parts: those of all experts, or its own."""
        return self.layer.adapter if self.layer.shares_adapters else self.layer.adapter[str(self.number)]

    @property
    def magnitude(self) -> Tensor | None:
        """Return DoRA's magnitudes of the expert's outputs, [O], or None."""
        return getattr(self.layer.adapter, f"magnitude{self.number}", None)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that the experts of the layer share."""
        return getattr(self.layer, name)


def experts_of_layer(layer: Any) -> list[GroupedExpert]:
    """Return the experts of a layer of all experts of a rank."""
    return [GroupedExpert(layer, number) for number in range(layer.num_gemms)]


@cache
def adapted_class(cls: Hashable) -> type:
    """Return the subclass of a layer's class with adapters."""
    base = cast(type, cls)
    mixin = AdaptedMegatronLinear if hasattr(base, "sharded_state_dict") else AdaptedLinear
    if any(each.__name__ in GROUPED for each in base.__mro__):
        mixin = AdaptedGroupedLinear
    return type(f"Adapted{base.__name__}", (mixin, base), {})


def sizes_of_parts(linear: Any, parts: Sequence[str]) -> dict[str, int]:
    """Return the outputs on this rank of the layer as one, or of each layer that is fused in it."""
    return {MAIN: linear.weight.shape[0]} if MAIN in parts else fused_part_sizes(linear) or {}


def adapters_of_parts(linear: Any, section: LoRA, parts: Sequence[str], *, name: str) -> torch.nn.ModuleDict:
    """Return new adapters of a layer, `name` in the complete model, or of the parts that are fused in it."""
    return torch.nn.ModuleDict(
        {
            part: Adapter(linear, section=section, outputs=size, name=f"{name}.{part}")
            for part, size in linear.part_sizes.items()
            if part in parts
        }
    )


def initial_magnitude(linear: Any) -> torch.nn.Parameter:
    """Return DoRA's magnitudes of a layer, the norms of its rows, [O]; collective if rows are split over ranks."""
    magnitude = torch.nn.Parameter(row_norms(linear, linear.weight.detach()))
    set_parallel_attributes(magnitude, linear, sharded=0 if linear.partition.sharded_output else None)
    return magnitude


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


def row_lengths(linear: Any, weight_OI: Tensor) -> Tensor:
    """Return the divisor of DoRA's magnitudes, [O]: the norm of each row, and 1 for a row of zeros, as of padding."""
    norms = row_norms(linear, weight_OI)
    return norms.masked_fill(norms == 0, 1.0)


def adapted_layers(chunks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the layers with adapters, with their names."""
    for chunk in chunks:
        for name, module in chunk.named_modules():
            if isinstance(module, AdaptedLinear) and hasattr(module, "adapter"):
                yield name, module


def adapted_weights(chunks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name of each weight with adapters, and its layer, or its expert in a layer of all experts."""
    for name, layer in adapted_layers(chunks):
        if isinstance(layer, AdaptedGroupedLinear):
            for expert in experts_of_layer(layer):
                yield f"{name}.weight{expert.number}", expert
        else:
            yield f"{name}.weight", layer
