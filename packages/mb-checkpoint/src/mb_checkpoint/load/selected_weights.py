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

from mb_checkpoint.formats.unpickling import weights_only
from mb_checkpoint.mcore import quiet
from mb_checkpoint.megatron.shards import Shard, read_blocks


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
    blocks = [
        (
            shard.key,
            Shard(data=_with_stacked_axes(shard), offsets=shard.global_offset, shape=shard.global_shape),
        )
        for shard in nested_values(sharded)
    ]
    with quiet(), weights_only(directory):
        read_blocks(directory, blocks)
    loaded = dict_list_map_inplace(lambda shard: shard.data.detach(), sharded)
    merged: dict[str, Any] = apply_factory_merges(loaded, factories)
    return merged


def _with_stacked_axes(shard: ShardedTensor) -> torch.Tensor:
    """Return the memory of a shard as a view with the axes of its stack, such as that of the layers, of length 1."""
    view: torch.Tensor = shard.data.detach()[(None,) * shard.prepend_axis_num]
    return view
