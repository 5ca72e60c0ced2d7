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
from tiny_gpt import LENGTH, batch, forward_step, gpt, gradients, relative, rows, start

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


def shard(model: Any, strategy: str, **options: Any) -> FullyShardedDataParallel:
    """Wrap a model in Megatron-FSDP."""
    ddp = DistributedDataParallelConfig(
        use_megatron_fsdp=True,
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        data_parallel_sharding_strategy=strategy,
        **options,
    )
    groups = ProcessGroupCollection.use_mpu_process_groups()
    return FullyShardedDataParallel(config=model.config, ddp_config=ddp, module=model, pg_collection=groups)


def overwritten_sums(strategy: str) -> bool:
    """Return whether all gradients are marked to be overwritten, which are sums with this strategy."""
    start()
    wrapped = shard(gpt(), strategy)
    accumulate(wrapped, 1)
    groups = wrapped.module.param_and_grad_buffer.parameter_groups
    assert not any(group.main_grad_buffer.is_data_distributed for group in groups)
    return all(getattr(each, "overwrite_main_grad", False) for group in groups for each in group.params)


def fsdp_error(fault: str | None, strategy: str, scale: float, communicated: str | None) -> float:
    """Return how far the gradient of two microbatches is from `scale` times that of DistributedDataParallel.

    The rank has no other of its data-parallel group, as experts where expert parallelism takes all of them.
    """
    start()
    whole = batch(torch.ones(2, LENGTH))
    plain = gradients(gpt(), [rows(whole, index) for index in range(2)])
    dtype = communicated and getattr(torch, communicated)
    with mb_guard.without(fault) if fault else nullcontext():
        wrapped = shard(gpt(), strategy, megatron_fsdp_grad_comm_dtype=dtype)
    stored = wrapped.module.param_and_grad_buffer
    buffers = [each.main_grad_buffer for each in stored.parameter_groups if each.main_grad_buffer is not None]
    for buffer in buffers:
        buffer.gradient_scaling_factor = scale  # as Megatron-FSDP sets it for experts
    accumulate(wrapped, 2)
    found = {
        stored.param_to_name[parameter].removeprefix("module."): buffer.get_item(number).view(parameter.shape)
        for buffer in buffers
        for parameter, number in buffer.param_idx.items()
    }
    return relative(found, {name: scale * value for name, value in plain.items()})


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
