"""Estimate of the bytes that this rank copies in a background save, before the first one."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from mb_checkpoint.megatron.optimizer import distributed_parts, has_state, optimizer_parts


def estimate_staged_bytes(model: Sequence[Any], optimizer: Any | None, *, sharing: int) -> int:
    """Return the size of the weights and the optimizer state that this rank writes, as far as they exist.

    The state of an optimizer exists from its first step on. Memory that several tensors share counts once. Not a
    collective.

    Args:
        model: Model chunks of this rank.
        optimizer: Megatron's optimizer; None: only the weights are saved.
        sharing: Number of ranks that share the writing of replicated tensors.
    """
    storages: set[int] = set()
    weights = _new_bytes((tensor for chunk in model for tensor in chunk.state_dict().values()), storages)
    if optimizer is None or not has_state(optimizer):
        return weights // sharing
    sharded = {id(part) for part in distributed_parts(optimizer)}
    replicated = unsharded = 0
    for part in optimizer_parts(optimizer):
        size = _new_bytes(_optimizer_tensors(part), storages)
        if id(part) in sharded:
            unsharded += size
        else:
            replicated += size
    return (weights + replicated) // sharing + unsharded


def _optimizer_tensors(part: Any) -> Iterator[object]:
    if not has_state(part):
        return
    inner = part if isinstance(part, torch.optim.Optimizer) else part.optimizer
    for group in inner.param_groups:
        yield from group["params"]
    for state in inner.state.values():
        yield from state.values()


def _new_bytes(tensors: Iterable[object], storages: set[int]) -> int:
    """Return the size of the memory behind tensors that is not among `storages`, and add it there."""
    size = 0
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in storages:
                storages.add(storage.data_ptr())
                size += storage.nbytes()
    return size
