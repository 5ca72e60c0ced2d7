"""Saving the layout of Megatron-FSDP: each rank writes its shards; one rank writes each replicated object."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mb_checkpoint import fsdp, mcore
from mb_checkpoint.collectives import gather
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointSaveContext
from mb_checkpoint.mcore_plan import WritePlan, split_by_size
from mb_checkpoint.rerun_state import RERUN_KEY, entries_of, rerun_entry
from mb_checkpoint.restore_shards import rng_name
from mb_checkpoint.rng import collect_rng_state, rng_digest
from mb_checkpoint.shards import ShardPlanner, content
from mb_checkpoint.writing import DataFile, Piece


class ShardSavePlanner:
    """Planner of the saves of one run in this layout.

    Args:
        config: `fully_parallel_save` assigns replicated entries to the rank with the least data; the number of files
            per rank is `storage_writers_per_rank`, in background saves `dist_ckpt_workers`.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._planner = ShardPlanner(
            to_lowest=not config.fully_parallel_save, constant=config.ckpt_assume_constant_structure
        )
        self._writers = config.dist_ckpt_workers if config.async_save else config.storage_writers_per_rank

    def plan(
        self,
        state: dict[str, Any],
        directory: Path,
        *,
        metadata: dict[str, Any],
        validate: bool,
    ) -> WritePlan:
        """Return the data that this rank writes; folder and metadata are not used. Collective; writes no data.

        The coverage of each tensor by the ranks' pieces is always checked.

        Raises:
            ValueError: The pieces overlap or leave a gap.
        """
        items, index = self._planner.divide(state)
        shares = [share for share in split_by_size(items, self._writers) if share]
        files = [
            DataFile(
                name=f"__{dist.get_rank()}_{number}.distcp",
                pieces=tuple(Piece(index=item.index, data=content(state[item.index.fqn])) for item in share),
            )
            for number, share in enumerate(shares)
        ]
        return WritePlan(files=tuple(files), index=index)


def entries_to_save(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    common: Mapping[str, Any],
    *,
    groups: mcore.CheckpointGroups,
    metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the state of this rank by its names in a checkpoint. Collective.

    Raises:
        CheckpointLayoutError: The model is not in Megatron-FSDP.
    """
    entries: dict[str, Any] = {**common, "content_metadata": dict(metadata)}
    entries |= fsdp.weights(ctx.model, groups, keep=ctx.adapter_key_filter)
    if config.save_optim and mcore.has_state(ctx.optimizer):
        entries |= fsdp.optimizer_entries(ctx.model, ctx.optimizer)
    if ctx.opt_param_scheduler is not None:
        entries["opt_param_scheduler"] = ctx.opt_param_scheduler.state_dict()
    if config.save_rng:
        entries |= _rng(groups)
    return entries | entries_of(rerun_entry(ctx.rerun_state_machine).get(RERUN_KEY, {}))


def _rng(groups: mcore.CheckpointGroups) -> dict[str, Any]:
    """Return one random state per (pp, tp) if the data-parallel replicas agree, else that of each rank."""
    own = collect_rng_state(mcore.MegatronRng())
    positions = gather((groups.pp.rank(), groups.tp.rank(), rng_digest(own)))
    differ = len(set(positions)) > len({position[:2] for position in positions})
    return {rng_name(groups, groups.dp_cp.rank() if differ else 0): own}
