"""Process groups and seeds of a configuration, as context managers over mb-launch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import cast

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_host.reproducibility import make_index_add_deterministic
from mb_launch import World, default_process_group
from mb_launch import seed_libraries as seed_python_and_torch
from mb_launch.mcore import megatron_groups, seed_model_parallel
from mb_models import ModuleGroups
from mb_models.mimo_config import MimoModelConfig, module_ranks
from mb_trainer.config import ConfigContainer


def processes_joined(
    world: World, config: ConfigContainer, *, device: torch.device
) -> AbstractContextManager[None]:
    """Open torch's process group with the configured backend and timeout. Collective over the world."""
    timeout = timedelta(minutes=config.dist.distributed_timeout_minutes)
    return default_process_group(
        world, device=device, backend=config.dist.distributed_backend, timeout=timeout
    )


@contextmanager
def process_groups(
    world: World, config: ConfigContainer, *, device: torch.device
) -> Iterator[ProcessGroupCollection]:
    """Open torch's and Megatron's process groups; close them at the end. Collective over the world."""
    instances = config.ddp.num_distributed_optimizer_instances
    with (
        processes_joined(world, config, device=device),
        megatron_groups(config.model, config.dist, optimizer_instances=instances) as groups,
    ):
        yield groups


@contextmanager
def module_groups(world: World, config: ConfigContainer, *, device: torch.device) -> Iterator[ModuleGroups]:
    """Open torch's process group and the groups of each module of a MIMO model. Collective over the world."""
    with processes_joined(world, config, device=device):
        vision, language = module_ranks(cast(MimoModelConfig, config.model), world_size=world.world_size)
        backend = torch.distributed.get_backend()
        yield ModuleGroups.open(vision=vision, language=language, backend=backend)


def seed_everything(config: ConfigContainer, groups: ProcessGroupCollection) -> None:
    """Seed all generators, including Megatron's trackers, and select deterministic kernels if configured."""
    fix_sums_on_cpu(config)
    model = config.model
    seed_model_parallel(
        config.rng,
        groups,
        deterministic=model.deterministic_mode,
        cuda_graphs=model.cuda_graph_impl != "none",
    )


def seed_libraries(config: ConfigContainer) -> None:
    """Seed Python, NumPy and torch, and select deterministic kernels if configured."""
    fix_sums_on_cpu(config)
    seed_python_and_torch(config.rng.seed, deterministic=config.model.deterministic_mode)


def fix_sums_on_cpu(config: ConfigContainer) -> None:
    """Make index-based sums on the CPU reproducible, unless all kernels are deterministic."""
    if not config.model.deterministic_mode and not torch.cuda.is_available():
        make_index_add_deterministic()
