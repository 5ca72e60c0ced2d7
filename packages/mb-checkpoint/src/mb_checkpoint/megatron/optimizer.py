"""State of Megatron's optimizers: its sharded form, their parts, and the conditions for storing it."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.dist_checkpointing import ShardedObject
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import (
    Float16OptimizerWithFloat16Params,
    FP32Optimizer,
    MixedPrecisionOptimizer,
)
from torch.optim import Optimizer

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.load.param_groups import SCHEDULE
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.megatron.param_remainders import complete_main_params, either_main_params
from mb_checkpoint.megatron.shards import same_local_shards
from mb_checkpoint.megatron.step_counts import (
    inner_optimizer,
    stored_steps,
    synchronize_hybrid,
    with_step_counts,
)
from mb_checkpoint.megatron.torch_optimizer import TorchOptimizerState

SHARDING_KEY = "distrib_optim_sharding_type"
"""Entry of the metadata with the form of the distributed optimizer's state."""


def optimizer_section(
    optimizer: Any,
    sections: Mapping[str, Any],
    groups: CheckpointGroups,
    metadata: Mapping[str, Any],
    *,
    is_loading: bool,
) -> Any:
    """Return the sharded optimizer state that corresponds to sharded weights.

    Collective over the data-parallel ranks when it is saved as `fully_reshardable`, which gathers the state.
    """
    metadata = {**metadata, "dp_cp_group": groups.dp_cp}
    if isinstance(optimizer, Optimizer):
        optimizer = TorchOptimizerState(optimizer)
    elif is_loading:
        for part in optimizer_parts(optimizer):
            # None for SGD, and Megatron calls it without checking.
            if getattr(part, "init_state_fn", make_momenta) is None:
                part.init_state_fn = make_momenta
    complete = metadata.get(SHARDING_KEY) == "fully_reshardable"
    reshardable = distributed_parts(optimizer) if complete else []
    with same_local_shards(), complete_main_params(reshardable), unpadded_positions(reshardable):
        section = optimizer.sharded_state_dict(dict(sections), is_loading=is_loading, metadata=metadata)
    return _without_classes(section)


def make_momenta(optimizer: Optimizer, _config: Any = None) -> None:
    """Create the momenta of an SGD that has none, as its first step does."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if group.get("momentum") and not optimizer.state[parameter]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _without_classes(entry: Any) -> Any:
    """Return an optimizer section without the classes that HybridDeviceOptimizer has among the settings of its groups.

    A checkpoint that names a class is rejected when it is read; this run's optimizer has its own.
    """
    if isinstance(entry, Mapping):
        return {key: _without_classes(item) for key, item in entry.items() if not isinstance(item, type)}
    if isinstance(entry, list):
        return [_without_classes(item) for item in entry]
    if isinstance(entry, ShardedObject):
        entry.data = _without_classes(entry.data)
    return entry


@torch.no_grad()  # main parameters in float32 are leaves that require gradients, and are written in place
def load_optimizer_section(
    optimizer: Any, loaded: dict[Any, Any], *, weights: Mapping[torch.Tensor, torch.Tensor] | None = None
) -> None:
    """Load the optimizer state of `optimizer_section`, also that of another implementation of Adam.

    Args:
        optimizer: Optimizer of this run.
        loaded: The state.
        weights: Values in float32 of parameters of the model, for main parameters that are not in the state.
    """
    parts = [part for part in optimizer_parts(optimizer) if has_state(part)]
    states = [loaded] if len(parts) == 1 else [loaded[number] for number in range(len(parts))]
    # All optimizers of a chain step together. One without parameters on the rank that saved has counted nothing.
    steps = max((count for state in states if (count := stored_steps(state)) is not None), default=None)
    counted = [with_step_counts(part, state, steps=steps) for part, state in zip(parts, states, strict=True)]
    loaded = counted[0] if len(parts) == 1 else {**loaded, **dict(enumerate(counted))}
    target = TorchOptimizerState(optimizer) if isinstance(optimizer, Optimizer) else optimizer
    with either_main_params(
        [part for part in distributed_parts(optimizer) if has_state(part)], weights or {}
    ):
        target.load_state_dict(loaded)
    for part in parts:
        synchronize_hybrid(part)


_MAY_BE_STUBS = (FP32Optimizer, Float16OptimizerWithFloat16Params, DistributedOptimizer)
"""Optimizers of Megatron that a rank without trainable parameters has as a stub, and that have a flag for it."""


def has_state(optimizer: Any | None) -> bool:
    """Return whether there is an optimizer other than the stub of a rank without parameters."""
    stub = isinstance(optimizer, _MAY_BE_STUBS) and optimizer.is_stub_optimizer
    return optimizer is not None and not stub


def optimizer_parts(optimizer: Any) -> list[Any]:
    """Return the chained optimizers, or the single optimizer, as a list."""
    # Megatron's ChainedOptimizer, and optimizers of modules with per-module parallelism, which do not derive from it
    return list(optimizer.chained_optimizers) if hasattr(optimizer, "chained_optimizers") else [optimizer]


def optimizers_without_state(optimizer: Any | None) -> list[Optimizer]:
    """Return the optimizers of torch inside Megatron's that have not made a step, nor loaded a state."""
    parts = optimizer_parts(optimizer) if has_state(optimizer) else []
    outer = [inner_optimizer(part) for part in parts if has_state(part)]
    every = [each for inner in outer for each in (inner, *getattr(inner, "sub_optimizers", ()))]
    return [each for each in every if not each.state]


def grad_scaler(part: Any) -> Any | None:
    """Return the gradient scaler of an optimizer, which only half precision has."""
    return part.grad_scaler if isinstance(part, MixedPrecisionOptimizer) else None


def distributed_parts(optimizer: Any | None) -> list[Any]:
    """Return the chained optimizers whose state is sharded over data-parallel ranks."""
    return [part for part in optimizer_parts(optimizer) if isinstance(part, DistributedOptimizer)]


def parameter_groups(optimizer: Any) -> list[list[dict[str, Any]]]:
    """Return the parameter groups of each chained optimizer, with parameters as indices into its state."""
    part_groups = []
    for part in optimizer_parts(optimizer):
        first, groups = 0, []
        for group in part.param_groups:  # torch numbers the parameters of an optimizer in this order
            count = len(group["params"])
            groups.append({**group, "params": list(range(first, first + count))})
            first += count
        part_groups.append(groups)
    return part_groups


def set_schedule(optimizer: Any, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Copy the schedule of fitted groups, in the same order, to the parameter groups of each chained optimizer."""
    for part, fitted in zip(optimizer_parts(optimizer), groups, strict=True):
        for group, fitted_group in zip(part.param_groups, fitted, strict=True):
            group.update({key: fitted_group[key] for key in SCHEDULE if key in fitted_group})


def content_metadata(optimizer: Any | None, config: CheckpointConfig) -> dict[str, Any]:
    """Return the layout of the content, which is stored in the checkpoint and required to read it.

    The state of the distributed optimizer is stored bucket by bucket (`dp_reshardable`), which any data-parallel size
    can read, unless `dist_ckpt_optim_fully_reshardable` selects the form that any parallel layout can read.
    """
    if config.ckpt_format == "fsdp_dtensor":
        return {SHARDING_KEY: config.ckpt_format} if has_state(optimizer) else {}
    metadata: dict[str, Any] = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if distributed_parts(optimizer):
        full = config.dist_ckpt_optim_fully_reshardable
        metadata[SHARDING_KEY] = "fully_reshardable" if full else "dp_reshardable"
    return metadata


@contextmanager
def unpadded_positions(parts: Sequence[Any]) -> Iterator[None]:
    """Within the block, positions of parameters in a buffer do not count the padding between its buckets.

    For the form `fully_reshardable`, Megatron Core concatenates the buckets of a buffer without padding, and then takes
    each parameter from its position with padding: with several buckets, states would be stored shifted, without an
    error.
    """
    buffers = [buffer for part in parts for buffer in part.buffers]
    padded = [buffer.param_index_map for buffer in buffers]
    try:
        for buffer in buffers:
            padding = [bucket.grad_data.numel() - bucket.numel_unpadded for bucket in buffer.buckets]
            before = [0, *itertools.accumulate(padding)]
            buffer.param_index_map = {
                parameter: (start - before[bucket], end - before[bucket], bucket)
                for parameter, (start, end, bucket) in buffer.param_index_map.items()
            }
        yield
    finally:
        for buffer, positions in zip(buffers, padded, strict=True):
            buffer.param_index_map = positions
