"""Wrappers of model chunks for training: half precision, then data parallelism."""

import copy
from collections.abc import Sequence

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import Float16Module
from megatron.core.utils import get_model_config


def wrap_half_precision(chunks: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Convert chunks to bfloat16 or float16 according to their configuration; float32 chunks are returned unchanged.

    The last stage's output is float32 again. Expert biases of a router stay in float32.
    """
    config = get_model_config(chunks[0])
    if not (config.bf16 or config.fp16):
        return list(chunks)
    wrapped = [Float16Module(config, chunk) for chunk in chunks]
    for chunk in wrapped:
        for module in chunk.modules():
            # Float16Module also converts expert biases, whose updates are too small for half precision
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

    Only the first chunk of the first stage has buckets, and only with overlap_grad_reduce: elsewhere the reduction is
    not on the critical path. `disable_bucketing` also disables these buckets
    (overlap_param_gather_with_optimizer_step). `calculate_per_token_loss` is read here: a later change would scale
    gradients incorrectly. `ddp_config` is not modified.

    All ranks call it. With `broadcast_parameters` it is collective over the data-parallel groups, and copies the
    weights of the first replica to the others.
    """
    groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
    resolved = resolve_ddp_config(ddp_config, chunks=chunks, groups=groups)
    wrapped = []
    for number, chunk in enumerate(wrap_half_precision(chunks)):
        single_bucket = disable_bucketing or number > 0
        layout = None
        if resolved.use_distributed_optimizer:
            bucket_size = None if single_bucket or groups.pp.rank() > 0 else resolved.bucket_size
            layout = DistributedOptimizer.compute_full_param_layout(
                [parameter for parameter in chunk.parameters() if parameter.requires_grad],
                bucket_size,
                groups.intra_dp_cp.size(),
                resolved,
                expert_data_parallel_world_size=groups.intra_expt_dp.size(),
            )
        wrapped.append(
            DistributedDataParallel(
                config=get_model_config(chunk),
                ddp_config=resolved,
                module=chunk,
                disable_bucketing=single_bucket,
                pg_collection=groups,
                full_param_layout=layout,
            )
        )
    if broadcast_parameters:
        for chunk in wrapped:
            chunk.broadcast_params()
    return wrapped


def resolve_ddp_config(
    ddp_config: DistributedDataParallelConfig,
    *,
    chunks: Sequence[torch.nn.Module],
    groups: ProcessGroupCollection,
) -> DistributedDataParallelConfig:
    """Return a copy with the bucket size, in parameters, that DDP uses; None is one bucket for all parameters.

    Without a GPU it has no buffers that NCCL registers: Megatron Core would compile their allocator with CUDA.
    """
    resolved = copy.copy(ddp_config)
    if not any(parameter.is_cuda for parameter in chunks[0].parameters()):
        resolved.nccl_ub = resolved.fsdp_manual_registration = False
    if not resolved.overlap_grad_reduce:
        resolved.bucket_size = None
    elif resolved.num_buckets is not None:
        resolved.bucket_size = (
            sum(p.numel() for chunk in chunks for p in chunk.parameters()) // resolved.num_buckets
        )
    elif resolved.bucket_size is None:
        resolved.bucket_size = max(40_000_000, 1_000_000 * groups.dp_cp.size())
    return resolved
