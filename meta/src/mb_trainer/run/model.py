"""Process groups, seeds and model of a run, built from its configuration. Imports torch and megatron."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from torch.distributed import Store  # type: ignore[attr-defined]

from mb_config import OptimizerConfigOverrideProviderContext, build_scheduler, scheduler_steps, to_megatron
from mb_host.trainer_api import HOST_LAYERS, make_index_add_deterministic
from mb_launch import World, default_process_group, megatron_groups, seed_libraries, seed_model_parallel
from mb_models import (
    DataParallelSetup,
    LayerChoice,
    ModuleGroups,
    OptimizerSetup,
    TrainingModel,
    build_training_model,
    choose_layers,
    family_of,
)
from mb_models.trainer_api import AvailableLayers, has_module_layouts
from mb_trainer.config import ConfigContainer
from mb_trainer.run.user_code import UserCode


@contextmanager
def model_groups(
    world: World, config: ConfigContainer, *, device: torch.device, store: Store | None = None
) -> Iterator[ProcessGroupCollection | ModuleGroups]:
    """Open the process groups of a model, seed every generator, and close the groups at the end. Collective."""
    model, dist = config.model, config.dist
    deterministic = model.deterministic_mode
    timeout = timedelta(minutes=dist.distributed_timeout_minutes)
    backend = dist.distributed_backend
    with default_process_group(world, device=device, backend=backend, timeout=timeout, store=store):
        if has_module_layouts(model):
            modules = ModuleGroups.of_section(model)
            seed_libraries(config.rng.seed, deterministic=deterministic)
            make_index_add_deterministic()
            yield modules
            return
        instances = config.ddp.num_distributed_optimizer_instances
        with megatron_groups(model, dist, optimizer_instances=instances) as groups:
            graphs = model.cuda_graph_impl != "none"
            seed_model_parallel(config.rng, groups, deterministic=deterministic, cuda_graphs=graphs)
            make_index_add_deterministic()
            yield groups


def select_layers(model: Any, device: torch.device) -> LayerChoice:
    """Return the layers of a model section on a device, which on the CPU may be others than it names."""
    available = AvailableLayers(host=HOST_LAYERS)
    return choose_layers(family_of(model), device, wanted=model.transformer_impl, available=available)


def optimizer_overrides(config: ConfigContainer, chunks: list[Any]) -> dict[Any, Any]:
    """Return Megatron's overrides for single parameters: those of the provider, and the rates of adapters."""
    rates = {"lr": config.optimizer.lr, "min_lr": config.optimizer.min_lr}
    context = OptimizerConfigOverrideProviderContext(
        scheduler_config=config.scheduler, optimizer_config=config.optimizer, model=chunks
    )
    found = config.optimizer_config_override_provider.build_config_overrides(context)
    return found if config.peft is None else {**found, **config.peft.optimizer_overrides(**rates)}


def build_model(
    config: ConfigContainer,
    *,
    groups: ProcessGroupCollection | ModuleGroups,
    layers: LayerChoice,
    tokenizer_vocab_size: int,
    device: torch.device,
    code: UserCode,
) -> TrainingModel:
    """Build model, optimizer and scheduler, with the hooks of the user. Collective over the world."""
    dist = config.dist
    return build_training_model(
        config.model,
        groups=groups,
        optimizer=OptimizerSetup(
            config=to_megatron(config.optimizer),
            config_overrides=partial(optimizer_overrides, config),
            scheduler=partial(
                build_scheduler,
                scheduler=config.scheduler,
                optimizer_config=config.optimizer,
                steps=scheduler_steps(
                    config.train,
                    config.scheduler,
                    data_parallel_size=config.data_parallel_size,
                    seq_length=config.model.seq_length,
                ),
            ),
            gloo_groups=dist.use_gloo_process_groups,
        ),
        ddp=DataParallelSetup(
            config=to_megatron(config.ddp),
            torch_fsdp2=dist.use_torch_fsdp2,
            align_grad_reduce=dist.align_grad_reduce,
            broadcast_parameters=config.rng.data_parallel_random_init,
        ),
        device=device,
        layers=layers,
        tokenizer_vocab_size=tokenizer_vocab_size,
        pre_wrap_hook=[*code.pre_wrap_hooks, *([] if config.peft is None else [config.peft.install])],
        post_wrap_hook=code.post_wrap_hooks,
        seed=config.rng.seed,
    )
