"""Process groups of scripts and of built models, under Megatron-Bridge's names. Imports torch and megatron."""

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Literal

from megatron.core.num_microbatches_calculator import (
    destroy_num_microbatches_calculator,
    init_num_microbatches_calculator,
)
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.utils import get_attr_wrapped_model

from mb_launch import (
    World,
    default_process_group,
    megatron_groups,
    pick_device,
    read_world,
    seed_model_parallel,
)
from mb_trainer.config import ConfigContainer, DistributedInitConfig, GPTModelConfig, RNGConfig
from mb_trainer.errors import UserCodeError
from mb_trainer.run.model import model_groups


class OpenGroups(ExitStack[bool | None]):
    """Owner of process groups that a script opened.

    They are closed at the end of a `with` block, by `close`, by `destroy_global_state`, or when the process ends.
    """

    owners: ClassVar[list["OpenGroups"]] = []
    """Owners with open groups; Megatron has one set of groups for each process."""

    def __init__(self) -> None:
        super().__init__()
        self.owners.append(self)

    def __exit__(self, *error: Any) -> None:
        """Close the groups."""
        self.owners[:] = [owner for owner in self.owners if owner is not self]
        super().__exit__(*error)


def destroy_global_state() -> None:
    """Close the process groups that scripts opened, with Megatron's global state. All ranks call it."""
    while OpenGroups.owners:
        OpenGroups.owners[-1].close()


atexit.register(destroy_global_state)


def initialize_model_parallel(section: Any, seed: int | None = None, **options: Any) -> OpenGroups:
    """Open torch's and Megatron's process groups for the layout of a section, and seed. Collective over the world.

    Args:
        section: Model section.
        seed: Seed of the weights; None: generators are not seeded.
        options: Fields of the section `dist`, such as `distributed_timeout_minutes`.

    Returns:
        The owner of the groups; used as a context manager, it closes them at the end of the block.
    """
    world, dist = read_world(os.environ), DistributedInitConfig(**options)
    with OpenGroups() as opened:
        groups = _open(opened, world, section, dist)
        if seed is not None:
            seed_model_parallel(RNGConfig(seed=seed), groups, deterministic=section.deterministic_mode)
        return opened.pop_all()


def _open(opened: OpenGroups, world: World, section: Any, dist: DistributedInitConfig) -> Any:
    backend = dist.distributed_backend
    opened.enter_context(default_process_group(world, device=pick_device(world), backend=backend))
    return opened.enter_context(megatron_groups(section, dist))


@contextmanager
def temporary_distributed_context(backend: Literal["nccl", "gloo"] = "gloo") -> Iterator[None]:
    """Open the groups of a single process for the length of a block.

    Args:
        backend: For GPUs; on the CPU the backend is gloo.
    """
    section = GPTModelConfig(num_layers=1, hidden_size=1, num_attention_heads=1)
    with OpenGroups() as opened:
        groups = _open(opened, World(), section, DistributedInitConfig(distributed_backend=backend))
        seed_model_parallel(RNGConfig(seed=0), groups)
        yield


def initialize_megatron(
    cfg: ConfigContainer,
    allow_no_cuda: bool = False,
    skip_mpu_initialization: bool = False,
    get_embedding_ranks: Any = None,
    get_position_embedding_ranks: Any = None,
    restart_store: Any = None,
) -> ProcessGroupCollection:
    """Open the process groups of a configuration, seed, and set Megatron's number of microbatches. Collective.

    Args:
        cfg: Configuration after `validate`.
        allow_no_cuda: Without effect: a machine without a GPU computes on the CPU.
        skip_mpu_initialization: Must be False.
        get_embedding_ranks: Must be None.
        get_position_embedding_ranks: Must be None.
        restart_store: Store in which the ranks find each other; None: that of the launcher.

    Returns:
        The groups, which `destroy_global_state` closes.

    Raises:
        mb_trainer.errors.UserCodeError: An argument is set that has no effect here, or `cfg` is not validated.
    """
    del allow_no_cuda
    for name, value in {
        "skip_mpu_initialization": skip_mpu_initialization,
        "get_embedding_ranks": get_embedding_ranks,
        "get_position_embedding_ranks": get_position_embedding_ranks,
    }.items():
        if value:
            raise UserCodeError(
                f"{name}: has no effect, because the layout of the model decides on the groups. Leave it out."
            )
    if cfg.data_parallel_size is None:
        raise UserCodeError(
            "cfg: its data-parallel size is not computed, which the number of microbatches depends on. Call "
            "cfg.validate() before."
        )
    world, train = read_world(os.environ), cfg.train
    device = pick_device(world, external_mapping=cfg.dist.external_gpu_device_mapping)
    with OpenGroups() as opened:
        groups = opened.enter_context(model_groups(world, cfg, device=device, store=restart_store))
        opened.callback(destroy_num_microbatches_calculator)
        init_num_microbatches_calculator(
            world.rank,
            train.rampup_batch_size,
            train.global_batch_size,
            train.micro_batch_size,
            cfg.data_parallel_size,
            train.decrease_batch_size_if_needed,
            step_batch_size_schedule=train.step_batch_size_schedule,
            seq_length=cfg.model.seq_length,
        )
        opened.pop_all()
    return groups


def set_jit_fusion_options(model_config: Any, micro_batch_size: int) -> None:
    """Return: torch.compile compiles fused functions when they are first called.

    Args:
        model_config: Without effect.
        micro_batch_size: Without effect.
    """
    del model_config, micro_batch_size


def get_pg_collection(model: Any | Sequence[Any]) -> Any:
    """Return the process groups of a model or its chunks; Megatron's global ones if it has none."""
    chunk = model[0] if isinstance(model, Sequence) else model
    try:
        return get_attr_wrapped_model(chunk, "pg_collection", allow_none=False)
    except RuntimeError:  # Megatron's answer if neither the model nor what it wraps has the attribute
        return ProcessGroupCollection.use_mpu_process_groups()
