"""Sharded weights of the model chunks of a rank."""

from collections.abc import Mapping, Sequence
from typing import Any

from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
from megatron.core.utils import unwrap_model

from mb_checkpoint.errors import CheckpointLayoutError
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.megatron.shards import same_local_shards


def section_names(model: Sequence[Any]) -> list[str]:
    """Return `model`, or `model0`, `model1`, ... for several chunks."""
    return ["model"] if len(model) == 1 else [f"model{index}" for index in range(len(model))]


def model_sections(
    model: Sequence[Any], groups: CheckpointGroups, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the sharded weights of each chunk."""
    metadata = {**metadata, "dp_cp_group": groups.dp_cp}
    chunks = zip(section_names(model), unwrap_model(list(model)), strict=True)
    with same_local_shards():
        return {name: chunk.sharded_state_dict(metadata=metadata) for name, chunk in chunks}


def load_model_sections(model: Sequence[Any], loaded: Mapping[str, Any], *, strict: bool) -> None:
    """Load weights into the model chunks."""
    for name, chunk in zip(section_names(model), unwrap_model(list(model)), strict=True):
        chunk.load_state_dict(loaded[name], strict=strict)


def reject_empty_tensors(sections: Mapping[str, Any]) -> None:
    """Reject a tensor without elements, on which Megatron Core's writer ends in a division by zero.

    Raises:
        CheckpointLayoutError: The sharded weights have one.
    """
    for key, shape in shapes_of(sections).items():
        if 0 in shape:
            raise CheckpointLayoutError(
                f"checkpoint save: {key} has no elements (shape {list(shape)}), which Megatron Core's format cannot "
                "hold. Register it with persistent=False if it is a buffer, or give it at least one element."
            )


def shapes_of(sections: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the global shape of each tensor that sharded weights of this rank request."""
    shapes: dict[str, tuple[int, ...]] = {}
    for entry in nested_values(dict(sections)):
        for part in sharded_parts(entry):
            if isinstance(part, ShardedTensor):
                shapes[part.key] = tuple(part.global_shape)
    return shapes


def padded_tensors(sections: Mapping[str, Any]) -> set[str]:
    """Return the keys of the tensors whose stored vocabulary may be padded to another size."""
    return {
        part.key
        for entry in nested_values(dict(sections))
        for part in sharded_parts(entry)
        if isinstance(part, ShardedTensor) and part.allow_shape_mismatch
    }


def sharded_parts(entry: Any) -> list[Any]:
    """Return the sharded parts of an entry of a sharded state dict."""
    built = entry.build() if isinstance(entry, ShardedTensorFactory) else entry
    return list(nested_values(built)) if isinstance(built, (dict, list)) else [built]
