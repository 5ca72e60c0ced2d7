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
        _barrier()
        return action()
    try:
        return action()
    finally:
        _barrier()


def _barrier() -> None:
    """Wait for all ranks; with NCCL on this rank's current GPU, which NCCL would otherwise have to guess."""
    if torch.distributed.get_backend() == "nccl":
        torch.distributed.barrier(device_ids=[torch.cuda.current_device()])
    else:
        torch.distributed.barrier()
