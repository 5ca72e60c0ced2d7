"""Collectives over all ranks of a run: all-gather of Python objects, and work on rank 0 first. Requires torch."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

Gather = Callable[[Any], Sequence[Any]]
"""All-gather: takes the value of this rank and returns, on every rank, the values of all ranks in rank order."""


def gather_from_all_ranks(value: Any) -> Sequence[Any]:
    """All-gather over the default process group; without one, return a list of this value alone. Collective.

    Values are pickled, so any Python object is allowed; under NCCL this synchronises with the device.
    """
    if not torch.distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def rank_zero_first(action: Callable[[], Result]) -> Result:
    """Run an action on rank 0 of the default process group first, then on all other ranks.

    Rank 0 fills a cache, and the other ranks load from it. The barrier is also reached if rank 0 raises, so that no
    rank blocks on a failed one. Without a process group the action runs immediately. Collective.
    """
    if not torch.distributed.is_initialized():
        return action()
    if torch.distributed.get_rank() != 0:
        _barrier()
        return action()
    try:
        return action()
    finally:
        _barrier()


def own_rank() -> int:
    """Return the rank of this process in the default process group; 0 without a group."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def is_rank_zero() -> bool:
    """Return whether this is rank 0 of the default process group, or there is no group."""
    return own_rank() == 0


def _barrier() -> None:
    """Wait for all ranks. With NCCL, pass the current GPU of this rank, which NCCL would otherwise guess."""
    if torch.distributed.get_backend() == "nccl":
        torch.distributed.barrier(device_ids=[torch.cuda.current_device()])
    else:
        torch.distributed.barrier()
