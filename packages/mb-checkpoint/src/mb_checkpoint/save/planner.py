"""Plan of the data that a rank writes, and its division among files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Any, Protocol

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from mb_checkpoint.collectives import own_rank
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.megatron.shards import ShardPlanner, content
from mb_checkpoint.save.writing import DataFile, Piece


@dataclass(slots=True, kw_only=True)
class WritePlan:
    """Data that this rank writes."""

    files: tuple[DataFile, ...]
    index: Metadata | None
    """Index of the pieces of all ranks, without positions in files; on rank 0 only."""
    finalize_fns: list[Any] = field(default_factory=list)
    """List to which Megatron appends its own last steps. They are never called: `mb_checkpoint.save.finalize` replaces
    them."""


def split_by_size(items: Sequence[WriteItem], parts: int) -> list[list[WriteItem]]:
    """Divide the items among files of about the same size; the size of objects counts as zero."""
    shares: list[list[WriteItem]] = [[] for _ in range(parts)]
    heap = [(0, number) for number in range(parts)]
    heapify(heap)
    sized = []
    for item in items:
        size = 0
        if item.type != WriteItemType.BYTE_IO and item.tensor_data is not None:
            size = item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize
        sized.append((size, item))
    for size, item in sorted(sized, key=lambda entry: -entry[0]):
        filled, number = heap[0]
        shares[number].append(item)
        heapreplace(heap, (filled + size, number))
    return shares


class PlannerLike(Protocol):
    """Planner of a save; `megatron.plan.TorchDistSavePlanner` matches."""

    def plan(
        self, state: dict[str, Any], directory: Path, *, metadata: dict[str, Any], validate: bool
    ) -> WritePlan:
        """Return the data that this rank writes. Collective."""


class ShardSavePlanner:
    """Planner of the saves of one run in the layout of Megatron-FSDP, and without Megatron Core.

    Each rank writes its shards; one rank writes each replicated object.

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
