"""Functions that run on ranks of `test_distributed.py`."""

import gc
import weakref
from contextlib import nullcontext

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

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
