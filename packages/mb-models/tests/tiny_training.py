"""Training helpers of the tests: process groups, seeds, an optimizer connected to its model, steps on batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models import gpt_forward_step, wrap_ddp

SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)


def start(settings: Mapping[str, Any]) -> ProcessGroupCollection:
    """Initialise the process groups of the settings, and seed."""
    sizes = {name: settings[name] for name in SIZES if name in settings}
    parallel_state.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    return ProcessGroupCollection.use_mpu_process_groups()


@dataclass(frozen=True, kw_only=True)
class Training:
    """A wrapped model and its optimizer."""

    model: list[Any]
    optimizer: Any
    groups: ProcessGroupCollection
    seq_length: int

    def step(
        self,
        batches: Callable[[], Iterator[Mapping[str, torch.Tensor]]],
        *,
        micro_batches: int,
        micro_batch_size: int,
        forward_step: Callable[..., Any] = gpt_forward_step,
    ) -> float | None:
        """Train on some of `batches()`; return the loss per token over all replicas, or None on other stages."""
        for chunk in self.model:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        reports = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[batches() for _ in self.model],
            model=self.model,
            num_microbatches=micro_batches,
            seq_length=self.seq_length,
            micro_batch_size=micro_batch_size,
            forward_only=False,
        )
        done, _, _ = self.optimizer.step()
        assert done
        if not reports:
            return None
        total = torch.stack([report["lm loss"] for report in reports]).sum(0)
        torch.distributed.all_reduce(total, group=self.groups.dp_cp)
        return float(total[0] / total[1])


def prepare(
    provider: Any, chunks: list[Any], groups: ProcessGroupCollection, *, lr: float = 3e-3, **ddp: Any
) -> Training:
    """Wrap the chunks of a rank for data parallelism with the settings `ddp`, and connect an optimizer to them."""
    config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, **ddp)
    model, transformer = wrap_ddp(chunks, config, pg_collection=groups), provider.transformer
    settings = OptimizerConfig(
        optimizer="adam",
        lr=lr,
        weight_decay=0.01,
        clip_grad=1.0,
        bf16=transformer.bf16,
        fp16=transformer.fp16,
        initial_loss_scale=16.0,
        params_dtype=transformer.params_dtype,
        use_distributed_optimizer=config.use_distributed_optimizer,
    )
    optimizer = get_megatron_optimizer(settings, model, use_gloo_process_groups=False)
    transformer.finalize_model_grads_func = finalize_model_grads
    transformer.grad_scale_func = optimizer.scale_loss
    if config.overlap_grad_reduce and len(model) == 1:
        transformer.no_sync_func, transformer.grad_sync_func = model[0].no_sync, model[0].start_grad_sync
    return Training(model=model, optimizer=optimizer, groups=groups, seq_length=provider.config.seq_length)
