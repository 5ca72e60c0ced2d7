"""Reading of single layers and experts into a model in one process.

Checkpoints hold the layers of a kind as one tensor. In a single process, Megatron Core reads such a tensor only as a
whole. Here each layer is read by itself, into the memory of its parameter.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace, nested_values
from megatron.core.dist_checkpointing.mapping import apply_factory_merges
from megatron.core.dist_checkpointing.state_dict_utils import load_preprocess
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from mb_checkpoint.formats.unpickling import SafeFileSystemReader, weights_only
from mb_checkpoint.mcore import quiet


def is_on_host_of_one_process(state: Mapping[str, Any]) -> bool:
    """Return whether a sharded state dict is that of a complete model on the CPU in the only process."""
    single = not dist.is_initialized() or dist.get_world_size() == 1
    return single and all(entry.data.device.type == "cpu" for entry in nested_values(state))


def read_selected(state: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Read the weights that a sharded state dict requests, of a complete model in this process. Not collective.

    Args:
        state: Entries of the model, without objects; read into the memory of their tensors.
        directory: Folder of the checkpoint.
    """
    sharded, _, factories = load_preprocess(state)
    shards: dict[str, dict[torch.Size, torch.Tensor]] = {}
    for shard in nested_values(sharded):
        shards.setdefault(shard.key, {})[torch.Size(shard.global_offset)] = _with_stacked_axes(shard)
    planner = ShardReadPlanner(shards)
    reader = SafeFileSystemReader(directory)
    with quiet(), weights_only(directory):
        reader.set_up_storage_reader(reader.read_metadata(), is_coordinator=True)
        plan = reader.prepare_local_plan(planner.plan_of(reader.read_metadata().state_dict_metadata))
        reader.read_data(plan, planner).wait()
    loaded = dict_list_map_inplace(lambda shard: shard.data.detach(), sharded)
    merged: dict[str, Any] = apply_factory_merges(loaded, factories)
    return merged


def _with_stacked_axes(shard: ShardedTensor) -> torch.Tensor:
    """Return the memory of a shard as a view with the axes of its stack, such as that of the layers, of length 1."""
    view: torch.Tensor = shard.data.detach()[(None,) * shard.prepend_axis_num]
    return view


class ShardReadPlanner(DefaultLoadPlanner):
    """Plan for torch's reader of checkpoint folders: name of a stored tensor -> offset in it -> memory to read into."""

    def __init__(self, shards: Mapping[str, Mapping[torch.Size, torch.Tensor]]) -> None:
        super().__init__()
        self._shards = shards

    def plan_of(self, stored: Mapping[str, Any]) -> LoadPlan:
        """Return the reads, for the tensors of an index."""
        items: list[ReadItem] = []
        for name, parts in self._shards.items():
            chunks = [ChunkStorageMetadata(offset, part.shape) for offset, part in parts.items()]
            items += create_read_items_for_chunk_list(name, stored[name], chunks)
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Return the memory that a read fills."""
        part = self._shards[read_item.dest_index.fqn][torch.Size(read_item.dest_index.offset or ())]
        for axis, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            part = part.narrow(axis, start, length)
        return part
