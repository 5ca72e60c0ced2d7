"""Process groups and seeds of a run: opened for the length of a block, closed on every way out."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

import numpy as np
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from torch.distributed import HashStore  # type: ignore[attr-defined]

from mb_host.reproducibility import make_index_add_deterministic
from mb_models import ModuleGroups
from mb_models.mimo_config import MimoModelConfig, module_ranks
from mb_trainer.config import ConfigContainer
from mb_trainer.handed_groups import handed_groups
from mb_trainer.processes import World, WorldError, need_address


def pick_device(world: World, *, external_mapping: bool = False) -> torch.device:
    """Return this rank's device: its GPU (index 0 if the launcher maps GPUs itself), or the CPU where there is none.

    Raises:
        WorldError: fewer GPUs are visible than the processes of this machine need; CUDA is not initialised.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if not external_mapping and world.local_rank >= visible:
        raise WorldError(
            f"dist.local_rank: is {world.local_rank}, but this process sees {visible} GPU{'s' if visible > 1 else ''} "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}), because each process of a "
            "machine takes the GPU with its local rank as index. Start at most as many processes on a machine as GPUs "
            "are visible, or set dist.external_gpu_device_mapping=true if the launcher gives each process its own GPU."
        )
    device = torch.device("cuda", 0 if external_mapping else world.local_rank)
    torch.cuda.set_device(device)
    return device


@contextmanager
def process_groups(
    world: World, config: ConfigContainer, *, device: torch.device
) -> Iterator[ProcessGroupCollection]:
    """Open torch's and Megatron's process groups, gloo where there is no GPU, and close them at the end.

    With `dist.use_decentralized_pg` they are handed over alone, and Megatron has none of its own. As
    `processes_joined` otherwise. Collective over the world.
    """
    with processes_joined(world, config, device=device):
        if config.dist.use_decentralized_pg:
            with handed_groups(config) as groups:
                yield groups
            return
        try:
            yield _process_wide(config)
        finally:
            parallel_state.destroy_model_parallel()


def _process_wide(config: ConfigContainer) -> ProcessGroupCollection:
    model = config.model
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=model.tensor_model_parallel_size,
        pipeline_model_parallel_size=model.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=model.virtual_pipeline_model_parallel_size,
        context_parallel_size=model.context_parallel_size,
        hierarchical_context_parallel_sizes=model.hierarchical_context_parallel_sizes,
        expert_model_parallel_size=model.expert_model_parallel_size,
        expert_tensor_parallel_size=model.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=config.ddp.num_distributed_optimizer_instances,
        use_sharp=config.dist.use_sharp,
        sharp_enabled_group=config.dist.sharp_enabled_group,
        order="tp-cp-ep-pp-dp" if config.dist.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
        distributed_timeout_minutes=config.dist.distributed_timeout_minutes,
        create_gloo_process_groups=config.dist.use_gloo_process_groups,
        high_priority_stream_groups=config.dist.high_priority_stream_groups or None,
        nccl_communicator_config_path=config.dist.nccl_communicator_config_path,
    )
    return ProcessGroupCollection.use_mpu_process_groups()


@contextmanager
def module_groups(world: World, config: ConfigContainer, *, device: torch.device) -> Iterator[ModuleGroups]:
    """Open torch's process group and those of modules with layouts of their own. Collective over the world.

    As `processes_joined` otherwise.
    """
    with processes_joined(world, config, device=device):
        vision, language = module_ranks(cast(MimoModelConfig, config.model), world_size=world.world_size)
        backend = torch.distributed.get_backend()
        yield ModuleGroups.open(vision=vision, language=language, backend=backend)


@contextmanager
def processes_joined(world: World, config: ConfigContainer, *, device: torch.device) -> Iterator[None]:
    """Open torch's process group, gloo where there is no GPU, and close it at the end. Collective over the world.

    A process group that exists already is used and left open. One process needs no port. The first collective names
    this rank's GPU (`barrier`). `init_process_group(device_id=...)` would do so, too, but with it torch splits every
    further group off the default one, which all ranks must take part in.

    Raises:
        WorldError: there are several processes, and nothing says where they meet.
    """
    ours = not torch.distributed.is_initialized()
    if ours:
        need_address(world, os.environ)  # where torch looks when the launcher gave no address
        torch.distributed.init_process_group(
            backend=config.dist.distributed_backend if device.type == "cuda" else "gloo",
            init_method=None if world.address is None else f"tcp://{world.address}",
            store=HashStore() if world.world_size == 1 else None,
            rank=world.rank,
            world_size=world.world_size,
            timeout=timedelta(minutes=config.dist.distributed_timeout_minutes),
        )
        barrier(device=device)
    try:
        yield
    finally:
        if ours:
            torch.distributed.destroy_process_group()


def barrier(*, device: torch.device | None = None) -> None:
    """Wait until all ranks are here. Collective over the world.

    Names the GPU: without it NCCL takes the one whose index is the rank modulo the number of GPUs if no collective came
    before, which is another rank's where ranks are not numbered node by node, and hangs.

    Args:
        device: Of this rank; None: the current one.
    """
    if "nccl" not in torch.distributed.get_backend():
        torch.distributed.barrier()
        return
    index = torch.cuda.current_device() if device is None else device.index
    torch.distributed.barrier(device_ids=[index])


def seed_everything(config: ConfigContainer, groups: ProcessGroupCollection) -> None:
    """Seed Python, NumPy, torch and Megatron's trackers: alike in data parallelism, different in pipeline stages.

    With `model.deterministic_mode` torch takes deterministic kernels, or raises where an operation has none. With
    `rng.data_parallel_random_init` replicas differ, too. Megatron's tracker adds the tensor-parallel rank itself; with
    CUDA graphs it is one that graphs can hold, Transformer Engine's where that is installed.
    """
    seed = config.rng.seed + 100 * groups.pp.rank()
    if config.rng.data_parallel_random_init:
        seed += 10 * groups.dp.rank()
    seed_libraries(config, seed)
    captured = torch.cuda.is_available() and config.model.cuda_graph_impl != "none"
    tensor_parallel.model_parallel_cuda_manual_seed(
        seed,
        tp_rank=groups.tp.rank(),
        ep_rank=groups.ep.rank(),
        etp_rank=groups.expt_tp.rank(),
        te_rng_tracker=config.rng.te_rng_tracker or captured,
        inference_rng_tracker=config.rng.inference_rng_tracker,
        use_cudagraphable_rng=captured,
        force_reset_rng=True,  # an earlier run of this process may have had a tracker of another kind
    )


def seed_libraries(config: ConfigContainer, seed: int) -> None:
    """Seed Python, NumPy and torch, and choose deterministic kernels on request, and on the CPU."""
    if config.model.deterministic_mode:
        torch.use_deterministic_algorithms(True)
    elif not torch.cuda.is_available():
        make_index_add_deterministic()
    random.seed(seed)
    np.random.seed(seed)  # libraries that draw from NumPy use its global state
    torch.manual_seed(seed)
