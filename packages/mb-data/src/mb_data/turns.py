"""Work that one rank does before the others find it done. Needs torch."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def rank_zero_first(action: Callable[[], Result]) -> Result:
    """Run on rank 0 of the default group, then on the others, also when rank 0 fails."""
    if not torch.distributed.is_initialized():
        return action()
    if torch.distributed.get_rank() != 0:
        torch.distributed.barrier()
        return action()
    try:
        return action()
    finally:
        torch.distributed.barrier()
