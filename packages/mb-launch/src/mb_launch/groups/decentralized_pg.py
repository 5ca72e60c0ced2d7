"""Process groups that replace Megatron's global `parallel_state`. Imports torch and megatron."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from megatron.core import parallel_state
from megatron.core.hyper_comm_grid import HyperCommGrid
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_launch.settings import GroupSettings, ParallelSizes

DENSE = {
    "tp": ["tp"],
    "cp": ["cp"],
    "dp": ["dp"],
    "pp": ["pp"],
    "mp": ["tp", "pp"],
    "tp_cp": ["tp", "cp"],
    "dp_cp": ["cp", "dp"],
    "tp_dp_cp": ["tp", "cp", "dp"],
    "intra_dist_opt": ["tp", "cp", "dp", "pp"],
}
EXPERT = {
    "expt_tp": ["expt_tp"],
    "ep": ["ep"],
    "expt_dp": ["expt_dp"],
    "tp_ep": ["expt_tp", "ep"],
    "tp_ep_pp": ["expt_tp", "ep", "pp"],
}
"""Group -> dimensions of the grid that it spans: of layers (`DENSE`) and of experts (`EXPERT`)."""


@contextmanager
def decentralized_groups(sizes: ParallelSizes, settings: GroupSettings) -> Iterator[ProcessGroupCollection]:
    """Open groups with the ranks that `parallel_state` would assign; close them at the end. Collective over the world.

    Megatron's global state remains empty except for its scratch buffer, which belongs to no group.
    """
    timeout = timedelta(minutes=settings.distributed_timeout_minutes)
    grid = rank_grid(sizes, settings, world_size=torch.distributed.get_world_size())
    groups = ProcessGroupCollection()
    for name, dims in DENSE.items():
        setattr(groups, name, grid.create_pg(dims, timeout=timeout, group_desc=name))
    for name, dims in EXPERT.items():
        setattr(groups, name, grid.create_pg(dims, view="expert", timeout=timeout, group_desc=name))
    stages = grid.get_rank_enum("pp")
    groups.embd = subgroup([sorted({ranks[0], ranks[-1]}) for ranks in stages], timeout=timeout)
    groups.pos_embd = subgroup([ranks[:1] for ranks in stages], timeout=timeout)
    groups.intra_dp_cp = groups.dp_cp_gtp_remat = groups.dp_cp
    groups.intra_expt_dp = groups.expt_dp_gtp_remat = groups.expt_dp
    groups.tp_ep_pp_with_egtp_remat = groups.tp_ep_pp
    parallel_state._set_global_memory_buffer()
    try:
        yield groups
    finally:
        parallel_state.destroy_global_memory_buffer()
        grid.destroy()
        for group in filter(None, (groups.embd, groups.pos_embd)):
            torch.distributed.destroy_process_group(group)


def rank_grid(sizes: ParallelSizes, settings: GroupSettings, *, world_size: int) -> HyperCommGrid:
    """Return the grid of all ranks: dimensions of layers, and those of experts as its view "expert"."""
    tp, cp = sizes.tensor_model_parallel_size, sizes.context_parallel_size
    pp, ep = sizes.pipeline_model_parallel_size, sizes.expert_model_parallel_size
    etp = sizes.expert_tensor_parallel_size or tp
    dense_sizes = {"tp": tp, "cp": cp, "dp": world_size // (tp * cp * pp), "pp": pp}
    expert_sizes = {"expt_tp": etp, "ep": ep, "expt_dp": world_size // (etp * ep * pp), "pp": pp}
    # The dimension that changes slowest is the last one.
    last = ("pp", "dp") if settings.use_tp_pp_dp_mapping else ("dp", "pp")
    order = ["tp", "cp", *last]
    expert_order = ["expt_tp", "ep", *(name.replace("dp", "expt_dp") for name in last)]
    grid = HyperCommGrid([dense_sizes[name] for name in order], order)
    grid.register_view(
        "expert", [expert_sizes[name] for name in expert_order], expert_order, shared_dims=["pp"]
    )
    return grid


def subgroup(ranks: list[list[int]], *, timeout: timedelta) -> torch.distributed.ProcessGroup | None:
    """Open a group for each list of ranks; return the group of this rank, None if it is in none. Collective."""
    group: torch.distributed.ProcessGroup | None
    group, _ = torch.distributed.new_subgroups_by_enumeration(ranks, timeout=timeout)  # type: ignore[no-untyped-call]
    return group
