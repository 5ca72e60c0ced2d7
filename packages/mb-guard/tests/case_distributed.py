"""Functions that run on ranks of `test_distributed.py`."""

import gc
import weakref
from contextlib import nullcontext
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from tiny_gpt import LENGTH, batch, forward_step, gpt, rows, start

import mb_guard


def is_leaked(fault: str | None) -> bool:
    """Train a linear layer one step, delete it, and return whether it is still alive."""
    parallel_state.initialize_model_parallel()
    model = torch.nn.Linear(4, 4, bias=False).cuda()
    config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1)
    with mb_guard.without(fault) if fault else nullcontext():
        wrapped = DistributedDataParallel(
            config, DistributedDataParallelConfig(use_distributed_optimizer=True), model
        )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=0.1, use_distributed_optimizer=True), [wrapped]
    )
    config.grad_scale_func = optimizer.scale_loss  # as every training loop of Megatron does
    wrapped(torch.ones(1, 4).cuda()).sum().backward()
    wrapped.finish_grad_sync()
    optimizer.step()
    alive = weakref.ref(model)
    del model, wrapped, optimizer, config
    gc.collect()
    return alive() is not None


def accumulate(wrapped: Any, microbatches: int) -> None:
    """Add up the gradients of microbatches, and reduce them."""
    wrapped.config.no_sync_func = wrapped.no_sync
    wrapped.config.finalize_model_grads_func = finalize_model_grads
    wrapped.zero_grad_buffer()
    whole = batch(torch.ones(2, LENGTH))
    get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter([rows(whole, index) for index in range(microbatches)]),
        model=[wrapped],
        num_microbatches=microbatches,
        seq_length=LENGTH,
        micro_batch_size=1,
        forward_only=False,
    )


def fsdp_gradient(strategy: str, microbatches: int, scale: float) -> torch.Tensor:
    """Return the gradients of a rank whose weights have no copy, and whose loss has a share in that of all ranks."""
    start()
    model = gpt()
    ddp = DistributedDataParallelConfig(
        use_megatron_fsdp=True,
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        data_parallel_sharding_strategy=strategy,
    )
    groups = ProcessGroupCollection.use_mpu_process_groups()
    wrapped = FullyShardedDataParallel(
        config=model.config, ddp_config=ddp, module=model, pg_collection=groups
    )
    stored = wrapped.module.param_and_grad_buffer.parameter_groups
    buffers = [each.main_grad_buffer for each in stored if each.main_grad_buffer is not None]
    for buffer in buffers:
        buffer.gradient_scaling_factor = scale  # as Megatron-FSDP sets it for experts
    accumulate(wrapped, microbatches)
    return torch.cat([buffer.data.flatten().clone() for buffer in buffers])


def fsdp_scaling_error(strategy: str, microbatches: int) -> float:
    """Return how far the gradient with a scale of 1/2 is from half of the gradient without."""
    right = fsdp_gradient(strategy, microbatches, 1.0) / 2
    return float((fsdp_gradient(strategy, microbatches, 0.5) - right).norm() / right.norm())


def reduction_error(fault: str | None) -> float:
    """Return how far the reduced gradient of this rank is from that before another model of the process was built."""

    def reduced(**options: bool) -> torch.Tensor:
        model = gpt()
        ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, bucket_size=500, **options)
        wrapped = DistributedDataParallel(model.config, ddp, model)
        accumulate(wrapped, 2)
        buckets = [bucket for group in wrapped.bucket_groups for bucket in group.buckets]
        rank = torch.distributed.get_rank()
        return torch.cat([bucket.grad_data.chunk(2)[rank] for bucket in buckets])

    start()
    right = reduced(overlap_grad_reduce=True)
    with mb_guard.without(fault) if fault else nullcontext():
        reduced(reduce_scatter_with_fp32_accumulation=True)
        found = reduced(overlap_grad_reduce=True)
    return float((found - right).norm() / right.norm())
