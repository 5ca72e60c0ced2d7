"""Unevenly sharded tensors: torch's distributed checkpoint plans and reads them, piece by piece.

torch derives the positions of even shards itself. Here each rank states the positions of its shards, so that no
communication is needed, and a rank without elements of a tensor need not know about it.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
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
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from mb_checkpoint.collectives import any_rank, gather_on_rank_zero, scatter_from_rank_zero
from mb_checkpoint.errors import CheckpointLayoutError
from mb_checkpoint.formats.unpickling import SafeFileSystemReader, load_object, read_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Block of a tensor that a rank holds."""

    data: torch.Tensor
    """The block; a load writes into it."""
    offsets: tuple[int, ...]
    """Position of its first element in the global tensor."""
    shape: tuple[int, ...]
    """Global shape."""

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """Position and size of the block."""
        return ChunkStorageMetadata(offsets=torch.Size(self.offsets), sizes=self.data.shape)


Entries = Mapping[str, Any]
"""Name -> `Shard`, or an object that is stored as it is."""


def full_shard(tensor: torch.Tensor) -> Shard:
    """Return a shard for a tensor that every rank holds completely."""
    return Shard(data=tensor, offsets=(0,) * tensor.dim(), shape=tuple(tensor.shape))


class ShardPlanner:
    """Distribution of the writing over ranks: each replicated entry is written by one of its holders.

    It is planned once, as long as every rank has the same entries.

    Args:
        to_lowest: The first rank that has an entry writes it, instead of the one with the least data.
    """

    def __init__(self, *, to_lowest: bool) -> None:
        self._planner = DefaultSavePlanner(
            flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=to_lowest
        )
        self._requested: list[WriteItem] | None = None
        self._assigned: list[WriteItem] = []
        self._index: Metadata | None = None

    def divide(self, entries: Entries) -> tuple[list[WriteItem], Metadata | None]:
        """Return the items that this rank writes and, on rank 0, the index. Collective over the default group.

        Raises:
            ValueError: The blocks of a tensor overlap or leave a gap.
        """
        requested = [
            write_item(name, entry)
            for name, entry in entries.items()
            if not isinstance(entry, Shard) or entry.data.numel() or 0 in entry.shape
        ]
        if any_rank(requested != self._requested):
            self._assigned = self._divided(SavePlan(requested))
            self._requested = requested
        return self._assigned, self._index

    def _divided(self, plan: SavePlan) -> list[WriteItem]:
        plans = gather_on_rank_zero(plan)

        def divide() -> list[SavePlan]:
            shares, self._index = self._planner.create_global_plan(plans)
            return shares

        assigned = scatter_from_rank_zero(divide)
        return list(assigned.items)


def write_item(name: str, entry: Any) -> WriteItem:
    """Return torch's write item of an entry."""
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
    """Return the data of an entry that is written to a file."""
    if isinstance(entry, Shard):
        return entry.data
    stream = io.BytesIO()
    torch.save(entry, stream)
    return stream.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredIndex:
    """Names, shapes and types of the entries of a torch distributed checkpoint."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each tensor."""
    objects: frozenset[str]
    """Names of all entries that are not tensors."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Type of each tensor."""


def read_index(folder: Path) -> StoredIndex:
    """Read the names, shapes and types of the entries of a checkpoint."""
    entries = read_metadata(folder).state_dict_metadata
    tensors = {name: entry for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}
    return StoredIndex(
        shapes={name: tuple(entry.size) for name, entry in tensors.items()},
        objects=frozenset(entries.keys() - tensors.keys()),
        dtypes={name: entry.properties.dtype for name, entry in tensors.items()},
    )


def read_entries(folder: Path, requested: Mapping[str, Shard | None]) -> dict[str, Any]:
    """Fill blocks with the stored values, and return the stored objects by name.

    Not collective: each rank reads the files itself. Stored values are converted to the dtype of the block.

    Args:
        folder: Folder of the checkpoint.
        requested: Name -> the block to fill, or None for an object; the checkpoint has each of them, in that shape.

    Raises:
        UnsafeCheckpointError: The index or an object names code that reading it would execute.
    """
    return read_blocks(folder, list(requested.items()))


def read_blocks(folder: Path, requested: Sequence[tuple[str, Shard | None]]) -> dict[str, Any]:
    """Read as `read_entries`, several blocks of a tensor if its name is there several times."""
    reader = SafeFileSystemReader(folder)
    index = reader.read_metadata()
    reader.set_up_storage_reader(index, is_coordinator=False)
    planner = _InPlaceLoadPlanner(requested, folder=folder)
    plan = planner.plan(index)
    reader.read_data(reader.prepare_local_plan(plan), planner).wait()
    return planner.objects


class _InPlaceLoadPlanner(DefaultLoadPlanner):
    """Load planner that reads into the blocks."""

    def __init__(self, requested: Sequence[tuple[str, Shard | None]], *, folder: Path) -> None:
        super().__init__()
        self._requested, self._folder = requested, folder
        self._blocks = {
            MetadataIndex(name, entry.offsets): entry.data.detach()
            for name, entry in requested
            if entry is not None
        }
        self.objects: dict[str, Any] = {}

    def plan(self, index: Metadata) -> LoadPlan:
        items: list[ReadItem] = []
        for name, entry in self._requested:
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
        block = self._blocks[read_item.dest_index]
        for dimension, (start, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            block = block.narrow(dimension, start, length)
        return block

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Do nothing: the data was read into the block itself."""


def _of_object(name: str) -> ReadItem:
    index, none = MetadataIndex(name), torch.Size((0,))
    return ReadItem(
        type=LoadItemType.BYTE_IO,
        dest_index=index,
        dest_offsets=none,
        storage_index=index,
        storage_offsets=none,
        lengths=none,
    )


@contextmanager
def same_local_shards() -> Iterator[None]:
    """Make `DTensor.to_local` return the same tensor at each call without gradients, within the block.

    Megatron Core 0.19 looks up the optimizer state of a parameter by `id(parameter.to_local())`
    (`dist_checkpointing.optimizer.get_param_id_to_sharded_param_map`). In torch 2.11 that is the stored shard; torch
    2.15 returns a new view of it for a parameter, so that no parameter is found. The block replaces a method of torch's
    class in all threads.
    """
    to_local = DTensor.to_local

    def stored_shard(self: DTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            return to_local(self, *args, **kwargs)
        return self._local_tensor

    DTensor.to_local = stored_shard  # type: ignore[method-assign]
    try:
        yield
    finally:
        DTensor.to_local = to_local  # type: ignore[method-assign]


def shard_of(tensor: Tensor) -> Shard:
    """Return the block of a tensor that this rank holds: its part of a DTensor, or the complete tensor.

    Raises:
        CheckpointLayoutError: It holds partial sums.
    """
    if not isinstance(tensor, DTensor):
        return full_shard(tensor.detach())
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise CheckpointLayoutError(
            f"state: a DTensor of shape {list(tensor.shape)} holds partial sums ({tensor.placements}), which are not a "
            "value. Redistribute it first."
        )
    local = tensor.to_local().detach()
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Shard(data=local, offsets=tuple(offsets), shape=tuple(tensor.shape))
