"""LoRA, canonical LoRA and DoRA on Megatron's parallel linear layers, including Transformer Engine's.

The class of a layer is replaced in place, so that its own parameters keep their names (and checkpoints of the model
stay loadable); adapters are below `<layer>.adapter.`. Shape letters: R rank of the adapter, I inputs and O outputs on
this rank.
"""

import logging
import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
import torch.distributed as dist
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

from mb_models.peft.config import CANONICAL_NAMES, CanonicalLoRA, DoRA, LoRA, PeftError
from mb_models.peft.linears import is_parallel, partition_of
from mb_models.peft.targets import MAIN, CandidateLayer, numbered, require_matches, select

logger = logging.getLogger(__name__)


class Adapter(torch.nn.Module):
    """Low-rank update scale * B A x of one linear layer, or of one of the layers that are fused in it."""

    def __init__(self, linear: Any, *, section: LoRA, outputs: int) -> None:
        super().__init__()
        weight, partition = linear.weight, linear.partition
        self.row = partition.row
        self.scale = section.alpha / section.dim
        self.dropout = section.dropout
        self.group = partition.group
        self.exchanges = not partition.of_experts  # the dispatcher of experts communicates instead
        self.scattered = partition.scattered and self.exchanges
        a_RI = torch.empty(section.dim, weight.shape[1], dtype=weight.dtype, device=weight.device)
        b_OR = torch.zeros(outputs, section.dim, dtype=weight.dtype, device=weight.device)
        # A is sharded along the input in a row-parallel layer: each rank draws its own values; else all draw the same
        with get_cuda_rng_tracker().fork() if self.row else nullcontext():
            torch.nn.init.kaiming_uniform_(a_RI, a=math.sqrt(5))
        self.lora_a, self.lora_b = torch.nn.Parameter(a_RI), torch.nn.Parameter(b_OR)
        set_parallel_attributes(self.lora_a, linear, sharded=1 if self.row else None)
        set_parallel_attributes(self.lora_b, linear, sharded=None if self.row else 0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the update of the layer's output; communicates R numbers per token if the layer communicates."""
        if self.dropout and self.training:
            with get_cuda_rng_tracker().fork() if self.row or self.scattered else nullcontext():
                x = F.dropout(x, self.dropout)
        return F.linear(self._exchange(F.linear(x, self.lora_a)), self.lora_b) * self.scale

    def delta(self) -> Tensor:
        """Return the update of the weight, [O, I]."""
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


def set_parallel_attributes(parameter: torch.nn.Parameter, linear: Any, *, sharded: int | None) -> None:
    """Set the attributes that describe a parameter's sharding to Megatron's optimizer, gradient norm and DDP."""
    marked: Any = parameter
    marked.tensor_model_parallel = sharded is not None
    marked.partition_dim, marked.partition_stride = -1 if sharded is None else sharded, 1
    # replicated, with a part of the sequence as input: finalize_model_grads sums the gradients over the ranks
    marked.sequence_parallel = (
        linear.partition.scattered and sharded is None and not linear.partition.of_experts
    )
    if hasattr(linear.weight, "allreduce"):
        marked.allreduce = linear.weight.allreduce


class AdaptedLinear:
    """Mixin for linear layers with adapters; precedes the layer's own class in the method resolution order."""

    def add_adapters(self: Any, section: LoRA, parts: Sequence[str]) -> None:
        """Add the adapters of the layer, or of the parts that are fused in it."""
        sizes = {MAIN: self.weight.shape[0]} if MAIN in parts else fused_part_sizes(self) or {}
        self.part_sizes = sizes
        self.joins_groups = "q" in sizes
        self.adapter = torch.nn.ModuleDict(
            {
                name: Adapter(self, section=section, outputs=size)
                for name, size in sizes.items()
                if name in parts
            }
        )
        self.glu_adapter = self.glu_halves and MAIN in parts
        if isinstance(section, DoRA):
            magnitude = torch.nn.Parameter(row_norms(self, self.weight.detach()))
            set_parallel_attributes(magnitude, self, sharded=None if self.partition.row else 0)
            self.adapter.register_parameter("magnitude", magnitude)

    def forward(self: Any, input_: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """Return output and bias like the layer itself, with the adapters' update added to the output."""
        answer = super().forward(input_, *args, **options)  # type: ignore[misc]
        output, bias, multiplied = self.partition.run(answer, input_)
        if not hasattr(self, "adapter"):
            return output, bias
        given = {name: adapter(multiplied) for name, adapter in self.adapter.items()}
        added = join_parts(self, zero_fill_parts(self, given, dim=-1), dim=-1)
        if not hasattr(self.adapter, "magnitude"):
            return output + added, bias
        own = self.bias if self.partition.own_bias else None
        with torch.no_grad():
            length = row_norms(self, self.weight + weight_delta(self))
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
        row = self.partition.row
        values, axes = {}, {}
        for key, value in self.adapter.state_dict(keep_vars=True).items():
            values[key] = value
            if key.endswith("lora_a") and row:
                axes[key] = 1
            elif not key.endswith("lora_a") and not row:
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
    return type(f"Adapted{base.__name__}", (AdaptedLinear, base), {})


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


def zero_fill_parts(linear: Any, given: Mapping[str, Tensor], *, dim: int) -> list[Tensor]:
    """Return one tensor for each part of a layer: the given ones, and zeros for parts without adapters."""
    like = next(iter(given.values()))
    found = []
    for name, size in linear.part_sizes.items():
        shape = list(like.shape)
        shape[dim] = size
        found.append(given[name] if name in given else like.new_zeros(shape))
    return found


def weight_delta(linear: Any) -> Tensor:
    """Return the adapters' update of a layer's weight on this rank, [O, I]."""
    given = {name: adapter.delta() for name, adapter in linear.adapter.items()}
    return join_parts(linear, zero_fill_parts(linear, given, dim=0), dim=0)


def row_norms(linear: Any, weight_OI: Tensor) -> Tensor:
    """Return the norm of each row of the complete weight, [O]; collective if rows are split over ranks."""
    squares = weight_OI.float().pow(2).sum(1)
    if linear.partition.row and linear.partition.group.size() > 1:
        torch.distributed.all_reduce(squares, group=linear.partition.group)
    return squares.sqrt().to(weight_OI.dtype)


def install(chunks: Sequence[Any], section: LoRA) -> None:
    """Freeze the chunks and add adapters to the layers that the section selects.

    All ranks of the default process group call it with the same random seed: a match on any rank counts, and all ranks
    raise the same error.

    Raises:
        PeftError: the rank is not positive; a pattern matches no layer of any rank; a layer is none of Megatron's
            parallel layers; or experts are split over tensor-parallel ranks.
    """
    if section.dim < 1:
        raise PeftError(
            f"peft.dim: must be 1 or more, is {section.dim}, because it is a rank. Set it higher."
        )
    canonical = isinstance(section, CanonicalLoRA)
    targets, exclude = list(section.target_modules), list(section.exclude_modules)
    found = [_select(chunk, targets=targets, exclude=exclude, canonical=canonical) for chunk in chunks]
    uneven = _validate_on_all_ranks(found, section)
    for chunk, selection in zip(chunks, found, strict=True):
        chunk.requires_grad_(False)
        for path, parts in selection.chosen.items():
            module = chunk.get_submodule(path)
            module.partition = partition_of(path, module)
            if module.partition.normalises:
                module.return_layernorm_output = True  # the adapters' input
            leaf = path.rsplit(".", 1)[-1]
            cls = type(module)
            module.__class__ = adapted_class(cls)  # type: ignore[arg-type]  # classes are hashable
            module.glu_halves = leaf == "linear_fc1" and module.config.gated_linear_unit
            module.fuses_qkv = leaf == "linear_qkv"
            module.by_layer = bool({(selection.kinds[path], part) for part in parts} & uneven)
            module.add_adapters(section, parts)
        for module in chunk.modules():
            recomputes = getattr(getattr(module, "config", None), "recompute_granularity", None) is not None
            if recomputes and hasattr(module, "layers"):
                module.register_forward_pre_hook(_require_gradient, with_kwargs=True)


def _require_gradient(_module: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Make the input of a stack of layers require a gradient.

    Recomputed layers receive gradients only through such an input, and frozen embeddings and encoders provide none.
    """
    input_ = options.get("hidden_states", args[0] if args else None)
    trains = torch.is_grad_enabled() and isinstance(input_, Tensor) and input_.is_floating_point()
    if trains and not input_.requires_grad:
        input_.requires_grad_()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSelection:
    """Layers of one chunk with adapters, and the candidates."""

    chosen: Mapping[str, tuple[str, ...]]
    """Path in the chunk -> parts."""
    kinds: Mapping[str, str]
    """Path of every layer that can have adapters -> its name without the numbers of transformer layer and expert."""
    left: frozenset[tuple[str, str]]
    """Kind and part of each candidate without adapters."""
    used: frozenset[str]
    """Patterns that select a layer."""
    leaves: frozenset[str]
    """Last parts of the names of all layers that can have adapters."""
    problem: str | None
    """Reason why a selected layer cannot have adapters; None: there is none."""


def _select(
    chunk: Any, *, targets: Sequence[str], exclude: Sequence[str], canonical: bool
) -> AdapterSelection:
    modules = dict(chunk.named_modules())
    numbers = _numbers(modules)
    known: list[CandidateLayer] = []
    others: list[CandidateLayer] = []
    for path, module in modules.items():
        if not path:
            continue
        parts = _parts(path.rsplit(".", 1)[-1], module, canonical=canonical)
        candidate = CandidateLayer(path=path, name=numbered(path, numbers), parts=parts)
        (known if is_parallel(module) else others).append(candidate)
    chosen, used = select(known, targets=targets, exclude=exclude)
    wrong, named = select(others, targets=targets, exclude=exclude) if targets else ({}, set())
    problem = None
    for path in (*chosen, *wrong):
        try:
            partition_of(path, modules[path])
        except PeftError as error:
            problem = str(error)
            break
    kinds = {each.path: _NUMBER.sub(r"\1.", each.name) for each in known}
    return AdapterSelection(
        chosen=chosen,
        kinds=kinds,
        left=frozenset(
            (kinds[each.path], part)
            for each in known
            for part in each.parts
            if part not in chosen.get(each.path, ())
        ),
        used=frozenset(used | named),
        leaves=frozenset(
            leaf for each in known for leaf in (each.path.rsplit(".", 1)[-1], *each.parts.values())
        ),
        problem=problem,
    )


_NUMBER = re.compile(r"\b(layers|local_experts)\.\d+\.")


def _numbers(modules: Mapping[str, Any]) -> dict[str, int]:
    """Return the path of each transformer layer and expert -> its number in the complete model."""
    found = {
        path: module.layer_number - 1
        for path, module in modules.items()
        if path.rpartition(".")[0].endswith("layers")
        and isinstance(getattr(module, "layer_number", None), int)
    }
    for path, module in modules.items():
        indices = getattr(module, "local_expert_indices", None)
        if path and isinstance(indices, list):
            found |= {f"{path}.experts.local_experts.{own}": number for own, number in enumerate(indices)}
    return found


def _parts(leaf: str, module: Any, *, canonical: bool) -> Mapping[str, str]:
    """Return part -> name of the part, for the last part of a layer's name."""
    if canonical and leaf == "linear_fc1" and is_parallel(module) and not module.config.gated_linear_unit:
        return {MAIN: CANONICAL_NAMES[leaf]["up"]}
    return CANONICAL_NAMES.get(leaf, {MAIN: leaf}) if canonical else {MAIN: leaf}


def _validate_on_all_ranks(found: Sequence[AdapterSelection], section: LoRA) -> set[tuple[str, str]]:
    """Raise on all ranks the error of any rank; return kinds and parts that only some layers adapt.

    Collective over the default process group.

    Raises:
        PeftError: as `install`.
    """
    everywhere = _gather_selections(list(found))
    problems = [each.problem for each in everywhere if each.problem is not None]
    if problems:
        raise PeftError(problems[0])
    targets = list(section.target_modules)
    missing = require_matches(
        targets or list(section.exclude_modules),
        used=set().union(*(each.used for each in everywhere)),
        leaves=set().union(*(each.leaves for each in everywhere)),
        field="peft.target_modules" if targets else "peft.exclude_modules",
        may_lack=targets == type(section)().target_modules,
    )
    if missing and (not dist.is_initialized() or dist.get_rank() == 0):
        logger.warning(
            "peft.target_modules: %s of the default list match no layer of this model. The others are adapted.",
            ", ".join(missing),
        )
    adapted_kinds = {
        (each.kinds[path], part)
        for each in everywhere
        for path, parts in each.chosen.items()
        for part in parts
    }
    return adapted_kinds & set().union(*(each.left for each in everywhere))


def _gather_selections(own: list[AdapterSelection]) -> list[AdapterSelection]:
    if not dist.is_initialized() or dist.get_world_size() == 1 or dist.get_backend() == "fake":
        return own
    gathered: list[list[AdapterSelection] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    return [each for part in gathered for each in part or ()]


def adapted_layers(chunks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the layers with adapters, with their names."""
    for chunk in chunks:
        for name, module in chunk.named_modules():
            if isinstance(module, AdaptedLinear) and hasattr(module, "adapter"):
                yield name, module


@torch.no_grad()
def init_magnitudes(chunks: Sequence[Any]) -> None:
    """Set DoRA's magnitudes to the row norms of the current weights; collective over tensor-parallel groups."""
    for _, layer in adapted_layers(chunks):
        layer.adapter.magnitude.copy_(row_norms(layer, layer.weight))


@torch.no_grad()
def merge(chunks: Sequence[Any]) -> None:
    """Merge the adapters into the weights and remove them; collective over tensor-parallel groups for DoRA."""
    for _, layer in list(adapted_layers(chunks)):
        merged = layer.weight + weight_delta(layer)
        if hasattr(layer.adapter, "magnitude"):
            merged = merged * (layer.adapter.magnitude / row_norms(layer, merged))[:, None]
        layer.weight.copy_(merged)
        del layer.adapter
