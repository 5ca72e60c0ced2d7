"""Access to Megatron Core's main parameters: float32 copies of weights that the model holds in lower precision."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from megatron.core.utils import unwrap_model

from mb_checkpoint import mcore


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
    divided = bool(mcore.distributed_parts(optimizer))
    optimizer.reload_model_params(state_dict=stored if divided else None)
    if stored is None or divided:
        return
    values = dict(_values(model, stored))
    for part in mcore.optimizer_parts(optimizer):
        if not isinstance(part, Float16OptimizerWithFloat16Params):
            continue
        for parameters, masters in zip(part.float16_groups, part.fp32_from_float16_groups, strict=True):
            for parameter, master in zip(parameters, masters, strict=True):
                if parameter in values:
                    master.data.copy_(values[parameter])


def _values(model: Sequence[Any], stored: Mapping[str, Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each parameter of this rank that has a stored value, with that value."""
    for section, chunk in zip(mcore.section_names(model), unwrap_model(list(model)), strict=True):
        for name, parameter in chunk.named_parameters():
            if name in stored[section]:
                yield parameter, stored[section][name]
