"""Access to Megatron Core's main parameters: float32 copies of weights that the model holds in lower precision."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from megatron.core.utils import unwrap_model

from mb_checkpoint.megatron.model import section_names
from mb_checkpoint.megatron.optimizer import distributed_parts, optimizer_parts

_LISTS = "fp32_from_fp16_params"
"""Entry of a half-precision optimizer with its main parameters, a list for each parameter group."""

MainParams = Mapping[int | None, list[list[Any]]]
"""Number of a chained optimizer, or None for the only one -> the lists of its main parameters."""


def in_float32(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return sharded weights that request float32, so that values are loaded with their stored precision."""
    return {
        section: {name: _in_float32(entry) for name, entry in entries.items()}
        for section, entries in sections.items()
    }


def _in_float32(entry: Any) -> Any:
    if not isinstance(entry, (ShardedTensor, ShardedTensorFactory)) or not _is_low_precision(entry.data):
        return entry
    data = torch.empty_like(entry.data, dtype=torch.float32)
    if isinstance(entry, ShardedTensor):
        return replace(entry, data=data, dtype=torch.float32)
    return replace(entry, data=data)


def _is_low_precision(data: Any) -> bool:
    return isinstance(data, torch.Tensor) and data.dtype in (torch.bfloat16, torch.float16)


def refresh(optimizer: Any, model: Sequence[Any], stored: Mapping[str, Any] | None) -> None:
    """Update the main parameters from the weights of the model, or from the values of a checkpoint.

    Args:
        optimizer: Megatron's optimizer; one of torch has no main parameters.
        model: Model chunks of this rank.
        stored: Loaded weights, as requested by `in_float32`; None uses those of the model.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        return  # it has the weights themselves
    divided = bool(distributed_parts(optimizer))
    optimizer.reload_model_params(state_dict=stored if divided else None)
    if stored is not None and not divided:
        set_values(optimizer, values_of(model, stored))


def set_values(optimizer: Any, values: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Copy values of weights to the main parameters of half-precision optimizers."""
    for part in optimizer_parts(optimizer):
        if not isinstance(part, Float16OptimizerWithFloat16Params):
            continue
        for parameters, masters in zip(part.float16_groups, part.fp32_from_float16_groups, strict=True):
            for parameter, master in zip(parameters, masters, strict=True):
                if parameter in values:
                    master.data.copy_(values[parameter])


def values_of(model: Sequence[Any], stored: Mapping[str, Any]) -> dict[torch.Tensor, torch.Tensor]:
    """Return the value of each parameter of this rank that has one among loaded weights."""
    return {
        parameter: stored[section][name]
        for section, chunk in zip(section_names(model), unwrap_model(list(model)), strict=True)
        for name, parameter in chunk.named_parameters()
        if name in stored[section]
    }


def take_lists(state: Mapping[str, Any]) -> MainParams:
    """Remove the lists of main parameters from a request, in place, and return them.

    Megatron keeps empty lists among what rank 0 stores for all ranks, and merges lists of tensors with them by their
    positions. Requested by number (`by_number`), they come back as they are (`put_back_lists`).
    """
    section = state.get("optimizer", {})
    chained: dict[int | None, Any] = {key: part for key, part in section.items() if isinstance(key, int)}
    parts = chained or {None: section}
    return {number: part.pop(_LISTS) for number, part in parts.items() if _LISTS in part}


def by_number(lists: MainParams) -> dict[str, Any]:
    """Return the entry of a request that reads the lists, without lists; empty without any."""
    numbered = {
        str(number): {
            f"{group}.{position}": tensor
            for group, tensors in enumerate(groups)
            for position, tensor in enumerate(tensors)
        }
        for number, groups in lists.items()
    }
    return {_LISTS: numbered} if lists else {}


def put_back_lists(loaded: dict[str, Any], lists: MainParams) -> None:
    """Move what `by_number` has read into the loaded states of the optimizers, as lists."""
    numbered = loaded.pop(_LISTS, {})
    for number, groups in lists.items():
        tensors = numbered.get(str(number), {})
        part = loaded["optimizer"] if number is None else loaded["optimizer"].setdefault(number, {})
        part[_LISTS] = [
            [tensors[f"{group}.{position}"] for position in range(len(requested))]
            for group, requested in enumerate(groups)
        ]
