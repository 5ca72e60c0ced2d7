"""What a checkpoint holds, as all ranks agree: one that alone cannot read it must not leave the others waiting."""

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
"""Objects of Megatron-FSDP's layout that are the same on all ranks."""


def is_fsdp_dtensor(path: Path) -> bool:
    """Say whether a checkpoint is in the layout of Megatron-FSDP. Collective: rank 0 looks, and all go its way."""
    return on_rank_zero(lambda: format_of(path)) == fsdp.FORMAT


def read_contents(path: Path, *, shards: bool) -> mcore.CheckpointContents:
    """Read what a checkpoint holds, each rank by itself. Collective.

    Args:
        path: Its folder.
        shards: It is in the layout of Megatron-FSDP.

    Raises:
        CheckpointReadError: A rank could not read it.
    """
    return read_on_all_ranks(path, lambda: _of_shards(path) if shards else mcore.read_contents(path))


def read_on_all_ranks(path: Path, read: Callable[[], T], *, after: str = "nothing was changed") -> T:
    """Read on every rank; where one cannot, raise on all, as they would wait for it. Collective.

    Args:
        path: Of the checkpoint.
        read: Reads on this rank alone.
        after: What a failure leaves, for the message.

    Raises:
        CheckpointReadError: A rank could not.
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
