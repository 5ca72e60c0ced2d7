"""Wrap model chunks for training: half precision, then data parallelism."""

import copy
from collections.abc import Sequence

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import Float16Module
from megatron.core.utils import get_model_config


def wrap_half_precision(chunks: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Convert chunks to bfloat16 or float16, as their configuration says; float32 chunks come back as they are.

    The last stage's output is float32 again. Expert biases of a router stay in float32.
    """
    config = get_model_config(chunks[0])
    if not (config.bf16 or config.fp16):
        return list(chunks)
    wrapped = [Float16Module(config, chunk) for chunk in chunks]
    for chunk in wrapped:
        for module in chunk.modules():
            if hasattr(module, "_maintain_float32_expert_bias"):
                module._maintain_float32_expert_bias()
    return wrapped


def wrap_ddp(
    chunks: Sequence[torch.nn.Module],
    ddp_config: DistributedDataParallelConfig,
    *,
    pg_collection: ProcessGroupCollection | None = None,
    disable_bucketing: bool = False,
    broadcast_parameters: bool = False,
) -> list[DistributedDataParallel]:
    """Wrap a rank's chunks in half precision and in Megatron's data parallelism, in order.

    Only the first chunk of the first stage has buckets, and only with overlap_grad_reduce: elsewhere reduction is not
    on the critical path. `disable_bucketing` takes them from it as well (overlap_param_gather_with_optimizer_step).
    `calculate_per_token_loss` is read here: set later, it would scale gradients wrongly. `ddp_config` is not changed.

    All ranks call it. With `broadcast_parameters` it is collective over the data-parallel groups, and gives all
    replicas the weights of the first.
    """
    groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
    settled = resolve_bucket_size(ddp_config, chunks=chunks, groups=groups)
    wrapped = []
    for number, chunk in enumerate(wrap_half_precision(chunks)):
        whole = disable_bucketing or number > 0
        layout = None
        if settled.use_distributed_optimizer:
            bucket_size = None if whole or groups.pp.rank() > 0 else settled.bucket_size
            layout = DistributedOptimizer.compute_full_param_layout(
                [parameter for parameter in chunk.parameters() if parameter.requires_grad],
                bucket_size,
                groups.intra_dp_cp.size(),
                settled,
                expert_data_parallel_world_size=groups.intra_expt_dp.size(),
            )
        wrapped.append(
            DistributedDataParallel(
                config=get_model_config(chunk),
                ddp_config=settled,
                module=chunk,
                disable_bucketing=whole,
                pg_collection=groups,
                full_param_layout=layout,
            )
        )
    if broadcast_parameters:
        for chunk in wrapped:
            chunk.broadcast_params()
    return wrapped


def resolve_bucket_size(
    ddp_config: DistributedDataParallelConfig,
    *,
    chunks: Sequence[torch.nn.Module],
    groups: ProcessGroupCollection,
) -> DistributedDataParallelConfig:
    """Return a copy whose bucket size, in parameters, is the one that DDP will use; None is one bucket for all."""
    settled = copy.copy(ddp_config)
    if not settled.overlap_grad_reduce:
        settled.bucket_size = None
    elif settled.num_buckets is not None:
        settled.bucket_size = (
            sum(p.numel() for chunk in chunks for p in chunk.parameters()) // settled.num_buckets
        )
    elif settled.bucket_size is None:
        settled.bucket_size = max(40_000_000, 1_000_000 * groups.dp_cp.size())
    return settled
