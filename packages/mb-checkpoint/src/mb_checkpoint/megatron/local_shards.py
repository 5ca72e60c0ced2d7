"""Identity of the local shards of FSDP2 parameters, by which Megatron Core matches optimizer state to weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor


@contextmanager
def same_local_shards() -> Iterator[None]:
    """Make `DTensor.to_local` return the same tensor at each call without gradients, within the block.

    Megatron Core 0.19 looks up the optimizer state of a parameter by `id(parameter.to_local())`
    (`dist_checkpointing.optimizer.get_param_id_to_sharded_param_map`). In torch 2.11 that is the stored shard; torch
    2.15 returns a new view of it for a parameter, so that no parameter is found. The block replaces a method of torch's
    class in all threads.
    """
    to_local = DTensor.to_local

    def stored_shard(self: DTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            return to_local(self, *args, **kwargs)
        return self._local_tensor

    DTensor.to_local = stored_shard  # type: ignore[method-assign]
    try:
        yield
    finally:
        DTensor.to_local = to_local  # type: ignore[method-assign]
