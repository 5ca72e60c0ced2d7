"""Blocks of tensors that a rank holds, without Megatron Core."""

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from mb_checkpoint.errors import CheckpointLayoutError
from mb_checkpoint.megatron.shards import Shard, full_shard


def shard_of(tensor: Tensor) -> Shard:
    """Return the block of a tensor that this rank holds: its part of a DTensor, or the complete tensor.

    Raises:
        CheckpointLayoutError: It holds partial sums.
    """
    if not isinstance(tensor, DTensor):
        return full_shard(tensor.detach())
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise CheckpointLayoutError(
            f"state: a DTensor of shape {list(tensor.shape)} holds partial sums ({tensor.placements}), which are not a "
            "value. Redistribute it first."
        )
    local = tensor.to_local().detach()
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Shard(data=local, offsets=tuple(offsets), shape=tuple(tensor.shape))
