"""Process groups that are handed over, and that Megatron finds in no place of its own. Imports torch and megatron."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from megatron.core import parallel_state
from megatron.core.hyper_comm_grid import HyperCommGrid
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_trainer.config import ConfigContainer

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
"""Group -> the directions of the layout that it spans, of layers and of experts."""


@contextmanager
def handed_groups(config: ConfigContainer) -> Iterator[ProcessGroupCollection]:
    """Open the groups of the layout, with the ranks that Megatron's own state would give each; close them at the end.

    Megatron's state stays empty, but for its scratch memory, which belongs to no group. Collective over the world.
    """
    patience = timedelta(minutes=config.dist.distributed_timeout_minutes)
    grid = grid_of(config, world_size=torch.distributed.get_world_size())
    groups = ProcessGroupCollection()
    for name, dims in DENSE.items():
        setattr(groups, name, grid.create_pg(dims, timeout=patience, group_desc=name))
    for name, dims in EXPERT.items():
        setattr(groups, name, grid.create_pg(dims, view="expert", timeout=patience, group_desc=name))
    stages = grid.get_rank_enum("pp")
    groups.embd = subgroup([sorted({ranks[0], ranks[-1]}) for ranks in stages], timeout=patience)
    groups.pos_embd = subgroup([ranks[:1] for ranks in stages], timeout=patience)
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


def grid_of(config: ConfigContainer, *, world_size: int) -> HyperCommGrid:
    """Return the ranks as a grid, seen by layers and, in the view "expert", by experts."""
    model = config.model
    tp, cp = model.tensor_model_parallel_size, model.context_parallel_size
    pp, ep = model.pipeline_model_parallel_size, model.expert_model_parallel_size
    etp = model.expert_tensor_parallel_size or tp
    sizes = {"tp": tp, "cp": cp, "dp": world_size // (tp * cp * pp), "pp": pp}
    expert_sizes = {"expt_tp": etp, "ep": ep, "expt_dp": world_size // (etp * ep * pp), "pp": pp}
    last = ("pp", "dp") if config.dist.use_tp_pp_dp_mapping else ("dp", "pp")  # what changes slowest
    order = ["tp", "cp", *last]
    expert_order = ["expt_tp", "ep", *(name.replace("dp", "expt_dp") for name in last)]
    grid = HyperCommGrid([sizes[name] for name in order], order)
    grid.register_view(
        "expert", [expert_sizes[name] for name in expert_order], expert_order, shared_dims=["pp"]
    )
    return grid


def subgroup(ranks: list[list[int]], *, timeout: timedelta) -> torch.distributed.ProcessGroup | None:
    """Open groups of some ranks each; return the one of this rank, None where it is in none. Collective."""
    group: torch.distributed.ProcessGroup | None
    group, _ = torch.distributed.new_subgroups_by_enumeration(ranks, timeout=timeout)  # type: ignore[no-untyped-call]
    return group
