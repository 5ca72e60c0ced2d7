"""Saving the layout of Megatron-FSDP: each rank writes its shards; one rank writes each replicated object."""

from pathlib import Path
from typing import Any

from mb_checkpoint.collectives import own_rank
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.megatron.shards import ShardPlanner, content
from mb_checkpoint.save.write_plan import WritePlan, split_by_size
from mb_checkpoint.save.writing import DataFile, Piece


class ShardSavePlanner:
    """Planner of the saves of one run in this layout.

    Args:
        config: `fully_parallel_save` assigns replicated entries to the rank with the least data; the number of files
            per rank is `storage_writers_per_rank`, in background saves `dist_ckpt_workers`.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._planner = ShardPlanner(to_lowest=not config.fully_parallel_save)
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
                name=f"__{own_rank()}_{number}.distcp",
                pieces=tuple(Piece(index=item.index, data=content(state[item.index.fqn])) for item in share),
            )
            for number, share in enumerate(shares)
        ]
        return WritePlan(files=tuple(files), index=index)
