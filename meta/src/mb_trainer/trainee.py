"""Training model: model, optimizer and scheduler, built from the configuration and connected."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_config import OptimizerConfigOverrideProviderContext, scheduler_steps
from mb_config.mcore import build_scheduler, to_megatron
from mb_models import wrap_ddp, wrap_megatron_fsdp, wrap_torch_fsdp2
from mb_models.fsdp import register_shard_load_hooks
from mb_trainer.config import ConfigContainer
from mb_trainer.families import Family
from mb_trainer.layers import Layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """Model with optimizer and scheduler, as Megatron's schedules and the training loop take them."""

    chunks: list[Any]
    """Model chunks of this rank, wrapped for data parallelism: one, or one per virtual stage."""
    optimizer: Any
    scheduler: Any
    transformer: Any
    """Megatron's configuration of the model."""
    vocab_size: int
    """Rows of the embedding, including padding."""
    parameters: int
    """Parameters of the complete model, each counted once."""


def build_trainee(
    config: ConfigContainer,
    *,
    family: Family,
    layers: Layers,
    tokenizer_vocab_size: int,
    device: torch.device,
    groups: ProcessGroupCollection,
) -> Trainee:
    """Build model, optimizer and scheduler. Every rank calls it, seeded; collective over the data-parallel groups."""
    provider = family.provider(
        config.model,
        layer_spec=layers.spec,
        device=device,
        tokenizer_vocab_size=tokenizer_vocab_size,
    )
    built = provider.provide_chunks(groups)
    if config.peft is not None:
        config.peft.install(built)
    chunks = wrap(built, config=config, groups=groups)
    gloo = config.dist.use_gloo_process_groups
    overrides = config.optimizer_config_override_provider.build_config_overrides(
        OptimizerConfigOverrideProviderContext(
            scheduler_config=config.scheduler, optimizer_config=config.optimizer, model=chunks
        )
    )
    optimizer = get_megatron_optimizer(
        to_megatron(config.optimizer),
        chunks,
        config_overrides=overrides,
        use_gloo_process_groups=gloo,
        pg_collection=None if gloo else groups,  # Megatron reads gloo groups only from its global state
    )
    if config.dist.use_torch_fsdp2:
        register_shard_load_hooks(optimizer)
    hook_up(provider.transformer, chunks, optimizer, config=config)
    return Trainee(
        chunks=chunks,
        optimizer=optimizer,
        scheduler=scheduled(optimizer, config),
        transformer=provider.transformer,
        vocab_size=provider.vocab_size,
        parameters=family.parameters(config.model, vocab_size=provider.vocab_size),
    )


def scheduled(optimizer: Any, config: ConfigContainer) -> Any:
    """Return the scheduler of an optimizer, at its first step."""
    steps = scheduler_steps(
        config.train,
        config.scheduler,
        data_parallel_size=config.data_parallel_size,
        seq_length=config.model.seq_length,
    )
    return build_scheduler(optimizer, scheduler=config.scheduler, settings=config.optimizer, steps=steps)


def wrap(built: list[Any], *, config: ConfigContainer, groups: ProcessGroupCollection) -> list[Any]:
    """Wrap model chunks in the configured data parallelism."""
    if config.dist.use_torch_fsdp2:
        return list(wrap_torch_fsdp2(built, to_megatron(config.ddp), pg_collection=groups))
    wrap_chunks = wrap_megatron_fsdp if config.ddp.use_megatron_fsdp else wrap_ddp
    return list(
        wrap_chunks(
            built,
            to_megatron(config.ddp),
            pg_collection=groups,
            disable_bucketing=config.optimizer.overlap_param_gather_with_optimizer_step,
            broadcast_parameters=config.rng.data_parallel_random_init,
        )
    )


def hook_up(transformer: Any, chunks: list[Any], optimizer: Any, *, config: ConfigContainer) -> None:
    """Set the hooks in the model's configuration through which Megatron's schedules scale, synchronise and finalise."""
    transformer.grad_scale_func = optimizer.scale_loss
    transformer.finalize_model_grads_func = finalize_model_grads
    if config.ddp.overlap_grad_reduce:
        transformer.no_sync_func = one_or_all([chunk.no_sync for chunk in chunks])
        if config.dist.align_grad_reduce:
            transformer.grad_sync_func = one_or_all([chunk.start_grad_sync for chunk in chunks])
    if config.ddp.overlap_param_gather and config.ddp.align_param_gather:
        transformer.param_sync_func = one_or_all([chunk.start_param_sync for chunk in chunks])


def one_or_all(functions: list[Callable[..., Any]]) -> Any:
    """Return the single function of one chunk, or the list that interleaved schedules expect."""
    return functions[0] if len(functions) == 1 else functions
