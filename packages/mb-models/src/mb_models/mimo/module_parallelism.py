"""Positions of a rank in a model with per-module parallelism, for data, checkpoints and norms."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.mimo.config.role import MIMO_LANGUAGE_MODULE_KEY as LANGUAGE
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.mimo.groups import ModuleGroups
from mb_models.mimo.provider import VISION

MODULE_PATHS: Mapping[str, str] = {LANGUAGE: "language_model", VISION: f"modality_submodules.{VISION}"}
"""Attribute path of each module in the complete model."""

BRIDGE_WARNING = r"c10d::broadcast_: an autograd kernel was not registered"
"""Start of torch's warning on tensors that cross Megatron's bridge. Harmless: their gradients cross the bridge, too."""


@dataclass(frozen=True, slots=True)
class FixedPosition:
    """Rank and size of one dimension, with the two methods of a process group that readers call."""

    number: int
    positions: int

    def rank(self) -> int:
        """Return the rank."""
        return self.number

    def size(self) -> int:
        """Return the size."""
        return self.positions


SINGLE = FixedPosition(0, 1)
"""Position in a dimension without parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPositions:
    """Subset of a process group collection that readers of data and checkpoints use."""

    tp: FixedPosition
    pp: FixedPosition
    dp: FixedPosition
    cp: FixedPosition
    dp_cp: Any
    """Process group of this rank alone."""
    module_layouts: Mapping[str, Mapping[str, int]] | None = None
    """Parallel sizes and first rank of each module; None for readers of data, which do not use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleParallelism:
    """Modules of this rank with their process groups."""

    groups: ModuleGroups
    wrapped: Mapping[str, torch.nn.Module]
    """Module -> the wrapper that reduces its gradients, for the modules of this rank."""

    @property
    def local_groups(self) -> Mapping[str, ProcessGroupCollection]:
        """Module -> its process groups, for the modules of this rank."""
        return self.groups.local

    @property
    def paths(self) -> Mapping[str, str]:
        """Module -> its attribute path in the complete model, for all modules."""
        return MODULE_PATHS

    @property
    def checkpoint_positions(self) -> RankPositions:
        """Positions by which checkpoints are written.

        Each rank stores its own random states, because it may have a different position in each module.
        """
        world = FixedPosition(torch.distributed.get_rank(), torch.distributed.get_world_size())
        layouts = {
            name: {
                "tensor_model_parallel_size": ranks.tensor_parallel_size,
                "data_parallel_size": ranks.data_parallel_size,
                "first_rank": ranks.first,
            }
            for name, ranks in self.groups.ranks.items()
        }
        return RankPositions(
            tp=world, pp=SINGLE, dp=SINGLE, cp=SINGLE, dp_cp=self.groups.main.pp, module_layouts=layouts
        )

    def describe(self) -> str:
        """Return a description of the ranks of each module and of its parallelism."""
        parts = []
        for name, title in ((VISION, "encoder"), (LANGUAGE, "language model")):
            ranks = self.groups.ranks[name]
            first, last = ranks.ranks[0], ranks.ranks[-1]
            where = f"rank {first}" if first == last else f"ranks {first} to {last}"
            sizes = f"tp {ranks.tensor_parallel_size}, dp {ranks.data_parallel_size}"
            parts.append(f"{title} on {where} ({sizes})")
        return ", ".join(parts)


def data_positions(groups: ModuleGroups) -> RankPositions:
    """Return the positions for reading data: every rank reads complete microbatches and uses its rows."""
    return RankPositions(tp=SINGLE, pp=SINGLE, dp=SINGLE, cp=SINGLE, dp_cp=groups.main.pp)


def ignore_bridge_warning() -> None:
    """Suppress torch's warning on tensors that cross Megatron's bridge, for the rest of the process."""
    warnings.filterwarnings("ignore", message=BRIDGE_WARNING)
