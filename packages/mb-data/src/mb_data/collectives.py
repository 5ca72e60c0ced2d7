"""All-gather of Python objects. Requires torch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

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
