"""Process groups of modules with per-module parallelism."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from megatron.core.hyper_comm_grid import HyperCommGrid
from megatron.core.models.mimo.config.role import MIMO_LANGUAGE_MODULE_KEY as LANGUAGE
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.errors import ModelConfigError
from mb_models.mimo.config import MimoModelConfig, ModuleRanks, module_ranks
from mb_models.mimo.provider import VISION, ModuleRows

DENSE = {
    "tp": ["tp"],
    "cp": ["cp"],
    "dp": ["dp"],
    "pp": ["pp"],
    "dp_cp": ["dp", "cp"],
    "tp_cp": ["tp", "cp"],
    "mp": ["tp", "pp"],
    "tp_dp_cp": ["tp", "dp", "cp"],
    "intra_dist_opt": ["tp", "cp", "dp", "pp"],
}
EXPERT = {
    "ep": ["ep"],
    "expt_tp": ["expt_tp"],
    "expt_dp": ["expt_dp"],
    "tp_ep": ["expt_tp", "ep"],
    "tp_ep_pp": ["expt_tp", "ep", "pp"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleGroups:
    """Process groups of both modules."""

    ranks: Mapping[str, ModuleRanks]
    """Module -> its ranks."""
    grids: Mapping[str, HyperCommGrid]
    """Module -> its ranks as Megatron's HyperCommGrid."""
    by_module: Mapping[str, ProcessGroupCollection]
    """Module -> its groups; on ranks outside of it each group is None."""
    local: Mapping[str, ProcessGroupCollection]
    """Module -> its groups, for the modules of this rank."""

    @classmethod
    def open(cls, *, vision: ModuleRanks, language: ModuleRanks, backend: str) -> "ModuleGroups":
        """Create all groups. Collective over the world.

        Args:
            vision: ranks of encoder and projection.
            language: ranks of the language model, identical to those of the encoder or disjoint from them.
            backend: backend of the groups.

        Raises:
            ModelConfigError: the modules do not fit on these ranks.
        """
        ranks = {VISION: vision, LANGUAGE: language}
        reject_invalid_ranks(vision, language, world_size=torch.distributed.get_world_size())
        opened = {name: open_groups(module_ranks, backend=backend) for name, module_ranks in ranks.items()}
        by_module = {name: groups for name, (_, groups) in opened.items()}
        rank = torch.distributed.get_rank()
        return cls(
            ranks=ranks,
            grids={name: grid for name, (grid, _) in opened.items()},
            by_module=by_module,
            local={name: groups for name, groups in by_module.items() if rank in ranks[name].ranks},
        )

    @classmethod
    def of_section(cls, section: MimoModelConfig) -> "ModuleGroups":
        """Create the groups of a section on all ranks, with the default group's backend. Collective over the world.

        Raises:
            ModelConfigError: the modules do not fit on these ranks.
        """
        vision, language = module_ranks(section, world_size=torch.distributed.get_world_size())
        return cls.open(vision=vision, language=language, backend=torch.distributed.get_backend())

    @property
    def disjoint(self) -> bool:
        """Return whether the modules are on different ranks."""
        return self.ranks[VISION].ranks != self.ranks[LANGUAGE].ranks

    @property
    def main(self) -> ProcessGroupCollection:
        """Return the groups of the language model, or of the encoder on ranks without the language model."""
        return self.local[LANGUAGE] if LANGUAGE in self.local else self.local[VISION]

    @property
    def rows(self) -> ModuleRows:
        """Return the rows of a microbatch of all replicas that this rank processes."""
        vision_groups = self.local.get(VISION)
        return ModuleRows(
            text=(self.main.dp.rank(), self.main.dp.size()),
            images=None if vision_groups is None else (vision_groups.dp.rank(), vision_groups.dp.size()),
        )


def reject_invalid_ranks(vision: ModuleRanks, language: ModuleRanks, *, world_size: int) -> None:
    """Reject ranks that the modules do not fit on.

    Raises:
        ModelConfigError: with all reasons.
    """
    problems = _size_problems(vision, language)
    if vision.ranks != language.ranks and {*vision.ranks} & {*language.ranks}:
        problems.append(
            f"vision, language: share some of ranks {list(vision.ranks)} and {list(language.ranks)}, because a shared "
            "rank would wait for itself. Use identical or disjoint ranks."
        )
    used = {*vision.ranks, *language.ranks}
    if used != {*range(world_size)}:
        problems.append(
            f"vision, language: use ranks {sorted(used)} of {world_size}, because every process takes part. Use "
            "exactly these ranks."
        )
    if problems:
        raise ModelConfigError(problems)


def _size_problems(vision: ModuleRanks, language: ModuleRanks) -> list[str]:
    problems = [
        f"{name}: tensor_parallel_size={ranks.tensor_parallel_size}, data_parallel_size={ranks.data_parallel_size}, "
        "because both are numbers of ranks. Use 1 or more."
        for name, ranks in (("vision", vision), ("language", language))
        if min(ranks.tensor_parallel_size, ranks.data_parallel_size) < 1
    ]
    sizes = sorted((vision.data_parallel_size, language.data_parallel_size))
    if not problems and sizes[1] % sizes[0]:
        problems.append(
            f"vision, language: data_parallel_size={vision.data_parallel_size} and {language.data_parallel_size}, "
            "because a replica of one takes the images of complete replicas of the other. Use a divisor or a multiple."
        )
    return problems


def open_groups(ranks: ModuleRanks, *, backend: str) -> tuple[HyperCommGrid, ProcessGroupCollection]:
    """Create all process groups of a module. Collective over the world; ranks outside of it get None for each group."""
    tp, dp = ranks.tensor_parallel_size, ranks.data_parallel_size
    grid = HyperCommGrid([tp, 1, dp, 1], ["tp", "cp", "dp", "pp"], rank_offset=ranks.first, backend=backend)
    grid.register_view("expert", [tp, 1, dp, 1], ["expt_tp", "ep", "expt_dp", "pp"], shared_dims=["pp"])
    groups = ProcessGroupCollection()
    for name, dims in DENSE.items():
        setattr(groups, name, grid.create_pg(dims))
    for name, dims in EXPERT.items():
        setattr(groups, name, grid.create_pg(dims, view="expert"))
    groups.intra_dp_cp, groups.intra_expt_dp, groups.inter_dist_opt = groups.dp_cp, groups.expt_dp, None
    groups.embd = groups.pos_embd = groups.pp
    return grid, groups
