"""Scalar reductions over all ranks of the world. Imports torch."""

import torch


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
