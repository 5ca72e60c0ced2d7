"""Process groups and seeds of Megatron Core. Imports torch and megatron.

The groups are open for the length of a block and closed on every way out, so that a process can run several jobs in
sequence.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_launch.groups.decentralized_pg import decentralized_groups
from mb_launch.groups.seeds import seed_libraries
from mb_launch.settings import GroupSettings, ParallelSizes, SeedSettings


@contextmanager
def megatron_groups(
    sizes: ParallelSizes, settings: GroupSettings, *, optimizer_instances: int = 1
) -> Iterator[ProcessGroupCollection]:
    """Open Megatron's process groups for the length of a block. Collective over the world.

    With `settings.use_decentralized_pg` the returned groups are the only ones, and Megatron's global `parallel_state`
    remains empty.

    Args:
        sizes: Degrees of parallelism; a `TransformerConfig` fits.
        settings: Timeout, order of ranks, backends.
        optimizer_instances: Instances of the distributed optimizer.
    """
    if settings.use_decentralized_pg:
        with decentralized_groups(sizes, settings) as groups:
            yield groups
        return
    try:
        yield _global_groups(sizes, settings, optimizer_instances=optimizer_instances)
    finally:
        parallel_state.destroy_model_parallel()


def _global_groups(
    sizes: ParallelSizes, settings: GroupSettings, *, optimizer_instances: int
) -> ProcessGroupCollection:
    """Create Megatron's global process groups, and return them as a collection. Collective over the world."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes.tensor_model_parallel_size,
        pipeline_model_parallel_size=sizes.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=sizes.virtual_pipeline_model_parallel_size,
        context_parallel_size=sizes.context_parallel_size,
        hierarchical_context_parallel_sizes=sizes.hierarchical_context_parallel_sizes,
        expert_model_parallel_size=sizes.expert_model_parallel_size,
        expert_tensor_parallel_size=sizes.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=optimizer_instances,
        use_sharp=settings.use_sharp,
        sharp_enabled_group=settings.sharp_enabled_group,
        order="tp-cp-ep-pp-dp" if settings.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
        distributed_timeout_minutes=settings.distributed_timeout_minutes,
        create_gloo_process_groups=settings.use_gloo_process_groups,
        high_priority_stream_groups=settings.high_priority_stream_groups or None,
        nccl_communicator_config_path=settings.nccl_communicator_config_path,
    )
    return ProcessGroupCollection.use_mpu_process_groups()


def reset_megatron() -> None:
    """Destroy Megatron's global groups, if any: an error may have kept `megatron_groups` from closing them."""
    parallel_state.destroy_model_parallel()


def seed_model_parallel(
    settings: SeedSettings,
    groups: ProcessGroupCollection,
    *,
    deterministic: bool = False,
    cuda_graphs: bool = False,
) -> None:
    """Seed Python, NumPy, torch and Megatron's trackers.

    Seeds are identical in data-parallel replicas, unless `data_parallel_random_init` is set, and different in pipeline
    stages. Megatron's tracker adds the tensor-parallel rank itself.

    Args:
        settings: Base seed and trackers.
        groups: Of this rank.
        deterministic: Use deterministic kernels, and raise in operations that have none.
        cuda_graphs: Use a tracker whose states CUDA graphs can capture: Transformer Engine's where it is installed.
    """
    # Megatron-LM's numbers, so that its runs and these start from the same weights: a stage is 100 apart, a replica 10.
    seed = settings.seed + 100 * groups.pp.rank()
    if settings.data_parallel_random_init:
        seed += 10 * groups.dp.rank()
    seed_libraries(seed, deterministic=deterministic)
    captured = torch.cuda.is_available() and cuda_graphs
    tensor_parallel.model_parallel_cuda_manual_seed(
        seed,
        tp_rank=groups.tp.rank(),
        ep_rank=groups.ep.rank(),
        etp_rank=groups.expt_tp.rank(),
        te_rng_tracker=settings.te_rng_tracker or captured,
        inference_rng_tracker=settings.inference_rng_tracker,
        use_cudagraphable_rng=captured,
        force_reset_rng=True,  # an earlier run of this process may have had a tracker of another kind
    )
