"""Contents of a checkpoint without its tensors, which rank 0 reads for all ranks."""

from pathlib import Path

from mb_checkpoint import mcore
from mb_checkpoint.collectives import on_rank_zero, read_for_all_ranks
from mb_checkpoint.formats.layout import COMMON_STATE, format_of
from mb_checkpoint.megatron.shards import read_entries, read_index
from mb_checkpoint.state.callback_states import CALLBACKS
from mb_checkpoint.state.train_state import EXACT_FLOPS

COMMON = (
    "checkpoint_version",
    "iteration",
    EXACT_FLOPS,
    "parallel_layout",
    "content_metadata",
    "opt_param_scheduler",
    CALLBACKS,
)
"""Objects of the fsdp_dtensor layout that are identical on all ranks."""


def is_read_first(name: str) -> bool:
    """Return whether a load of Megatron's layouts reads an entry before the tensors, because it decides on these."""
    return name == COMMON_STATE or name in COMMON


def layout_on_all_ranks(path: Path) -> str:
    """Return the layout of a checkpoint, as `layout.format_of`. Collective: rank 0 decides for all ranks."""
    return on_rank_zero(lambda: format_of(path))


def read_contents(path: Path, *, shards: bool) -> mcore.CheckpointContents:
    """Read the contents of a checkpoint without its tensors on rank 0. Collective.

    Args:
        path: Folder of the checkpoint.
        shards: Whether it is in the layout of Megatron-FSDP.

    Raises:
        CheckpointReadError: Rank 0 could not read it.
    """
    return read_for_all_ranks(path, lambda: _of_shards(path) if shards else mcore.read_contents(path))


def _of_shards(path: Path) -> mcore.CheckpointContents:
    index = read_index(path)
    common = read_entries(path, {name: None for name in COMMON if name in index.objects})
    return mcore.CheckpointContents(common=common, shapes=index.shapes, objects=index.objects)
