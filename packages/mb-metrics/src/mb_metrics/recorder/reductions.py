"""Rank of this process, and reductions of single values over ranks: maximum and logical and. Adapter for torch."""

import math

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def own_rank() -> int:
    """Return the rank of this process in the default process group; 0 without one."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_alone(group: ProcessGroup | None) -> bool:
    """Return True if no reduction is needed: no group, a group of one rank, or no torch.distributed."""
    return group is None or not dist.is_available() or not dist.is_initialized() or group.size() <= 1


def device_of(group: ProcessGroup | None) -> torch.device:
    """Return the device of tensors that this group reduces: the current GPU, or the host for gloo."""
    if group is None or not torch.cuda.is_available() or dist.get_backend(group) == "gloo":
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def reduce_max_stat_across_model_parallel_group(
    stat: float | torch.Tensor | None, mp_group: ProcessGroup | None
) -> float | None:
    """Return the maximum over the ranks of a group that have a value; None if no rank has one.

    Collective over `mp_group`; synchronizes with the device. Every number is a valid value, including -1 and
    infinities. If a rank has NaN, the result is NaN.
    """
    number = None if stat is None else float(stat)
    if is_alone(mp_group):
        return number
    is_nan = number is not None and math.isnan(number)
    largest = -math.inf if number is None or is_nan else number
    packed = torch.tensor(
        [largest, number is not None, is_nan], dtype=torch.float64, device=device_of(mp_group)
    )
    dist.all_reduce(packed, op=dist.ReduceOp.MAX, group=mp_group)
    largest, any_value, any_nan = packed.tolist()
    if not any_value:
        return None
    return math.nan if any_nan else largest


def logical_and_across_model_parallel_group(
    input: bool | torch.Tensor, mp_group: ProcessGroup | None
) -> bool:
    """Return True if a flag, converted to bool, is true on every rank of a group.

    Collective over `mp_group`; synchronizes with the device.
    """
    if is_alone(mp_group):
        return bool(input)
    flag = torch.tensor([int(bool(input))], dtype=torch.int32, device=device_of(mp_group))
    dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=mp_group)
    return bool(flag.item())
