"""Plan of the data that a rank writes, and its division among files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from mb_checkpoint.save.writing import DataFile


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
