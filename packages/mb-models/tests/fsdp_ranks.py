"""Functions that ranks run in tests of sharded data parallelism: a few steps of a tiny GPT on a rank's data."""

import torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.utils import unwrap_model

from mb_host.megatron.layers import host_block_spec
from mb_models import (
    GPTModelConfig,
    GPTModelProvider,
    gpt_forward_step,
    make_value_model,
    wrap_ddp,
    wrap_megatron_fsdp,
    wrap_torch_fsdp2,
)
from mb_models.peft.config import LoRA
from mb_models.training.fsdp import register_shard_load_hooks

STEPS, CASES, MICRO, LENGTH = 3, 8, 2, 32
DEGREES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)


def wrap_under_a_head(chunks, ddp, *, pg_collection):
    """Shard a model with a value head."""
    return wrap_torch_fsdp2(make_value_model(64, False)(chunks), ddp, pg_collection=pg_collection)


def wrap_a_layer(chunks, ddp, *, pg_collection):
    """Shard a module that is not a GPT."""
    return wrap_torch_fsdp2([chunks[0].decoder], ddp, pg_collection=pg_collection)


def wrap_with_adapters(chunks, ddp, *, pg_collection):
    """Shard a model with adapters."""
    LoRA(dim=2).install(chunks)
    return wrap_torch_fsdp2(chunks, ddp, pg_collection=pg_collection)


WRAPS = {
    "torch on a layer": wrap_a_layer,
    "ddp": wrap_ddp,
    "torch": wrap_torch_fsdp2,
    "torch under a head": wrap_under_a_head,
    "torch with adapters": wrap_with_adapters,
    "megatron": wrap_megatron_fsdp,
}


def build(settings, kind, ddp):
    """Return the provider, the wrapped chunks and their groups."""
    parallel_state.initialize_model_parallel(**{name: settings[name] for name in DEGREES if name in settings})
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    config = GPTModelConfig(**settings)
    provider = GPTModelProvider(config, layer_spec=host_block_spec, device=torch.device("cpu"))
    chunks = provider.provide_chunks(groups)
    wrapped = WRAPS[kind](chunks, DistributedDataParallelConfig(**ddp), pg_collection=groups)
    return provider, wrapped, groups


def microbatches(step, groups):
    """Yield this rank's rows of a step's batch."""
    tokens = torch.randint(128, (CASES, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    for rows in tokens.chunk(groups.dp.size())[groups.dp.rank()].split(MICRO):
        yield {
            "tokens": rows[:, :-1],
            "labels": rows[:, 1:],
            "loss_mask": torch.ones(MICRO, LENGTH),
            "position_ids": torch.arange(LENGTH).expand(MICRO, -1),
        }


def prepare(settings, kind, ddp, *, without_no_sync=False):
    """Return wrapped chunks, their connected optimizer and their groups."""
    provider, model, groups = build(settings, kind, ddp)
    transformer = provider.transformer
    if without_no_sync:
        transformer.no_sync_func = None
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=3e-3,
            clip_grad=1.0,
            bf16=transformer.bf16,
            params_dtype=transformer.params_dtype,
            use_distributed_optimizer=ddp.get("use_distributed_optimizer", False),
        ),
        model,
    )
    if kind == "torch":
        register_shard_load_hooks(optimizer)
    transformer.finalize_model_grads_func = finalize_model_grads
    transformer.grad_scale_func = optimizer.scale_loss
    return model, optimizer, groups


def take(steps, model, optimizer, groups):
    """Run these steps; return losses (none on other stages) and gradient norms."""
    losses, norms = [], []
    for step in steps:
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        reports = get_forward_backward_func()(
            forward_step_func=gpt_forward_step,
            data_iterator=[microbatches(step, groups) for _ in model],
            model=model,
            num_microbatches=CASES // MICRO // groups.dp.size(),
            seq_length=LENGTH,
            micro_batch_size=MICRO,
            forward_only=False,
        )
        norms.append(float(optimizer.step()[1]))
        if reports:
            total = torch.stack([report["lm loss"] for report in reports]).sum(0)
            torch.distributed.all_reduce(total, group=groups.dp_cp)
            losses.append((total[0] / total[1]).item())
    return losses, norms


def train(settings, kind, ddp, without_no_sync=False):
    """Return losses and gradient norms of some steps."""
    return take(range(STEPS), *prepare(settings, kind, ddp, without_no_sync=without_no_sync))


def train_in_two_parts(settings, saving, kind, folder):
    """Save after the first step; return losses and gradient norms of the others, from a new model that loads it."""
    model, optimizer, groups = prepare(settings, saving, {})
    take(range(1), model, optimizer, groups)
    dist_checkpointing.save(state(model, optimizer, groups), folder)
    parallel_state.destroy_model_parallel()
    model, optimizer, groups = prepare(settings, kind, {})
    take([7], model, optimizer, groups)  # overwritten by the loaded state
    loaded = dist_checkpointing.load(state(model, optimizer, groups, is_loading=True), folder)
    unwrap_model(model)[0].load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    return take(range(1, STEPS), model, optimizer, groups)


def state(model, optimizer, groups, *, is_loading=False):
    """Return the sharded weights and optimizer state of a Megatron checkpoint."""
    metadata = {"dp_cp_group": groups.dp_cp}
    weights = {"model": unwrap_model(model)[0].sharded_state_dict(metadata=metadata)}
    return weights | {
        "optimizer": optimizer.sharded_state_dict(weights, is_loading=is_loading, metadata=metadata)
    }


def rejection(settings, kind, ddp):
    """Return the reason why the chunks are rejected."""
    try:
        build(settings, kind, ddp)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was rejected"
