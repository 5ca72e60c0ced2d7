"""Contents of a checkpoint, read on all ranks: if one rank cannot read it, all ranks raise, so that none waits."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mb_checkpoint import fsdp, mcore
from mb_checkpoint.collectives import RanksFailedError, on_every_rank, on_rank_zero
from mb_checkpoint.errors import CheckpointReadError
from mb_checkpoint.layout import format_of
from mb_checkpoint.shards import read_entries, read_index

T = TypeVar("T")

COMMON = (
    "checkpoint_version",
    "iteration",
    mcore.EXACT_FLOPS,
    "parallel_layout",
    "content_metadata",
    "opt_param_scheduler",
)
"""Objects of the fsdp_dtensor layout that are identical on all ranks."""


def is_fsdp_dtensor(path: Path) -> bool:
    """Return whether a checkpoint is in the layout of Megatron-FSDP. Collective: rank 0 decides for all ranks."""
    return on_rank_zero(lambda: format_of(path)) == fsdp.FORMAT


def read_contents(path: Path, *, shards: bool) -> mcore.CheckpointContents:
    """Read the contents of a checkpoint, each rank from the files. Collective.

    Args:
        path: Folder of the checkpoint.
        shards: Whether it is in the layout of Megatron-FSDP.

    Raises:
        CheckpointReadError: A rank could not read it.
    """
    return read_on_all_ranks(path, lambda: _of_shards(path) if shards else mcore.read_contents(path))


def read_on_all_ranks(path: Path, read: Callable[[], T], *, after: str = "nothing was changed") -> T:
    """Read on every rank; if one rank fails, raise on all ranks, which would otherwise wait for it. Collective.

    Args:
        path: Folder of the checkpoint.
        read: Reads on this rank; not collective.
        after: State of the run after a failure, for the message.

    Raises:
        CheckpointReadError: A rank could not read it.
    """
    try:
        return on_every_rank(read)
    except RanksFailedError as error:
        raise CheckpointReadError(
            f"{path}: could not be read ({error}), and {after}. See that every rank reaches the folder, look at it "
            "with verify_checkpoint, or load another checkpoint."
        ) from error


def _of_shards(path: Path) -> mcore.CheckpointContents:
    index = read_index(path)
    common = read_entries(path, {name: None for name in COMMON if name in index.objects})
    return mcore.CheckpointContents(common=common, shapes=index.shapes, objects=index.objects)
