"""Pieces of a sharded state: the tensors and objects that ranks compare, with each other and with the previous save."""

from typing import Any

from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor


def pieces_without_data(state: Any) -> list[Any]:
    """Return the tensors and objects of this rank without their values, to be compared."""
    return [
        part.without_data()
        for part in nested_values(state)
        if isinstance(part, ShardedTensor | ShardedObject)
    ]
