"""Functions that run on a rank with the process groups of Megatron's bridges."""

import torch.distributed as dist
from megatron.core.models.mimo.comm import colocated_communicator
from megatron.core.pipeline_parallel.bridge_communicator import BridgeCommunicator


def exchange() -> tuple[str, str, float]:
    """Create both kinds of groups as a bridge does; return their backends and a sum over one of them."""
    pair = BridgeCommunicator._get_or_create_bridge_pg([0, 1])
    alone = BridgeCommunicator._get_or_create_broadcast_pg([[0], [1]])
    return dist.get_backend(pair), dist.get_backend(alone), added(pair)


def added(group: dist.ProcessGroup) -> float:
    """Sum 1 over all ranks, through the module names that Megatron's colocated communicator uses."""
    total = colocated_communicator.torch.ones(1)
    colocated_communicator.dist.all_reduce(total, group=group)
    return float(total)
