"""Pieces of tensors that ranks hold unevenly: torch's distributed checkpoint plans and reads them, piece by piece.

torch computes the place of an even piece by itself; here whoever has a piece says where it lies, so that no rank asks
another one, and ranks without any piece of a tensor need not know of it.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from mb_checkpoint.collectives import gather, on_rank_zero
from mb_checkpoint.unpickling import SafeFileSystemReader, load_object, read_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What a rank has of a tensor: a block of it."""

    data: torch.Tensor
    """The block; a load writes into it."""
    offsets: tuple[int, ...]
    """Where its first element lies in the whole."""
    shape: tuple[int, ...]
    """Of the whole."""

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """The place of the block."""
        return ChunkStorageMetadata(offsets=torch.Size(self.offsets), sizes=self.data.shape)


Entries = Mapping[str, Any]
"""Name -> `Shard`, or an object that is stored as it is."""


def full_shard(tensor: torch.Tensor) -> Shard:
    """Return a tensor that every rank has."""
    return Shard(data=tensor, offsets=(0,) * tensor.dim(), shape=tuple(tensor.shape))


class ShardPlanner:
    """Divides the writing of the entries of all ranks: what several have is written by one of them.

    Args:
        to_lowest: The first rank that has an entry writes it, instead of the one with the least to write.
        constant: Plan once, for as long as every rank has the same entries.
    """

    def __init__(self, *, to_lowest: bool, constant: bool) -> None:
        self._planner = DefaultSavePlanner(
            flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=to_lowest
        )
        self._constant = constant
        self._requested: list[WriteItem] = []
        self._given: list[WriteItem] = []
        self._index: Metadata | None = None

    def divide(self, entries: Entries) -> tuple[list[WriteItem], Metadata | None]:
        """Return what this rank writes and, on rank 0, the index of all pieces. Collective over the default group.

        Raises:
            ValueError: The blocks of a tensor overlap, or leave a part of it out.
        """
        requested = [
            write_item(name, entry)
            for name, entry in entries.items()
            if not isinstance(entry, Shard) or entry.data.numel()
        ]
        if not (self._constant and all(gather(bool(self._requested) and requested == self._requested))):
            self._given = self._divided(SavePlan(requested))
            self._requested = requested
        return self._given, self._index

    def _divided(self, own: SavePlan) -> list[WriteItem]:
        first = dist.get_rank() == 0
        plans: list[Any] | None = [None] * dist.get_world_size() if first else None
        dist.gather_object(own, plans)
        shares: list[SavePlan] = []

        def divide() -> None:
            found, self._index = self._planner.create_global_plan(plans or [])
            shares.extend(found)

        on_rank_zero(divide)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, shares if first else None)
        given: SavePlan = mine[0]
        return list(given.items)


def write_item(name: str, entry: Any) -> WriteItem:
    """Return torch's note of an entry that is to be written."""
    if not isinstance(entry, Shard):
        return WriteItem(index=MetadataIndex(name), type=WriteItemType.BYTE_IO)
    return WriteItem(
        index=MetadataIndex(name, torch.Size(entry.offsets)),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=entry.chunk,
            properties=TensorProperties.create_from_tensor(entry.data),
            size=torch.Size(entry.shape),
        ),
    )


def content(entry: Any) -> torch.Tensor | bytes:
    """Return what of an entry goes into a file."""
    if isinstance(entry, Shard):
        return entry.data
    stream = io.BytesIO()
    torch.save(entry, stream)
    return stream.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredIndex:
    """What a checkpoint of torch's says that it holds."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of each tensor."""
    objects: frozenset[str]
    """Names of all that is no tensor."""


def read_index(folder: Path) -> StoredIndex:
    """Read the names and shapes of what a checkpoint holds."""
    entries = read_metadata(folder).state_dict_metadata
    shapes = {
        name: tuple(each.size) for name, each in entries.items() if isinstance(each, TensorStorageMetadata)
    }
    return StoredIndex(shapes=shapes, objects=frozenset(entries.keys() - shapes.keys()))


def read_entries(folder: Path, requested: Mapping[str, Shard | None]) -> dict[str, Any]:
    """Fill blocks with what a checkpoint holds of them, and return its objects by name.

    No collective: each rank reads for itself. Stored values are converted to the dtype of the block.

    Args:
        folder: Of the checkpoint.
        requested: Name -> the block to fill, or None for an object; the checkpoint has each of them, in that shape.

    Raises:
        UnsafeCheckpointError: The index or an object names code that reading it would execute.
    """
    reader = SafeFileSystemReader(folder)
    index = reader.read_metadata()
    reader.set_up_storage_reader(index, is_coordinator=False)
    planner = _InPlaceLoadPlanner(requested, folder=folder)
    plan = planner.plan(index)
    reader.read_data(reader.prepare_local_plan(plan), planner).wait()
    return planner.objects


class _InPlaceLoadPlanner(DefaultLoadPlanner):
    """Brings what torch reads to its place."""

    def __init__(self, requested: Mapping[str, Shard | None], *, folder: Path) -> None:
        super().__init__()
        self._requested, self._folder = requested, folder
        self._blocks = {name: entry.data for name, entry in requested.items() if entry is not None}
        self.objects: dict[str, Any] = {}

    def plan(self, index: Metadata) -> LoadPlan:
        items: list[ReadItem] = []
        for name, entry in self._requested.items():
            chunks = [] if entry is None else [entry.chunk] * bool(entry.data.numel())
            stored = index.state_dict_metadata[name]
            if isinstance(stored, TensorStorageMetadata):
                items += create_read_items_for_chunk_list(name, stored, chunks)
            else:
                items.append(_of_object(name))
        return LoadPlan(items)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.objects[read_item.dest_index.fqn] = load_object(value, path=self._folder)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        found = self._blocks[read_item.dest_index.fqn].detach()
        for dimension, (start, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            found = found.narrow(dimension, start, length)
        return found

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing is left to do: the block itself was written to."""


def _of_object(name: str) -> ReadItem:
    place, none = MetadataIndex(name), torch.Size((0,))
    return ReadItem(
        type=LoadItemType.BYTE_IO,
        dest_index=place,
        dest_offsets=none,
        storage_index=place,
        storage_offsets=none,
        lengths=none,
    )
