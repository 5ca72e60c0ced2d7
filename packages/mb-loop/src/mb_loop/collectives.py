"""Maxima over ranks. Imports torch."""

import torch
from torch.distributed import ProcessGroup, ReduceOp


def any_rank(flag: bool) -> bool:
    """Return whether `flag` is set on any rank. Collective over the world; synchronises with the device under NCCL."""
    return max_across_ranks(float(flag)) > 0


def max_across_ranks(value: float) -> float:
    """Return the largest `value` of all ranks. Collective over the world; synchronises with the device under NCCL."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return value
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    largest = torch.tensor(value, device=device, dtype=torch.float64)
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
    return float(largest.item())


def max_in_group_(values: torch.Tensor, group: ProcessGroup | None) -> None:
    """Replace values by the largest of a group, which is NaN if one of them is. Collective over the group.

    The maximum of NCCL and Gloo may lose a NaN, which is therefore reduced as a second number.
    """
    if group is None or group.size() == 1:
        return
    is_nan = values.isnan()
    both = torch.stack([values.masked_fill(is_nan, -torch.inf), is_nan.to(values.dtype)])
    torch.distributed.all_reduce(both, op=ReduceOp.MAX, group=group)
    values.copy_(both[0].masked_fill(both[1] > 0, torch.nan))
