"""Work on one or every rank, with result and failure sent to all ranks, so that none blocks on a failed one.

A process without a process group is a single rank.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from mb_checkpoint.errors import CheckpointReadError, cause_of

T = TypeVar("T")


def require_process_group() -> None:
    """Check that torch.distributed is initialized, which is required with a single process as well.

    Raises:
        RuntimeError: It is not initialized.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "mb_checkpoint: torch.distributed is not initialized. A distributed checkpoint needs it even "
            "with one process. Call torch.distributed.init_process_group first."
        )


def own_rank() -> int:
    """Return the rank of this process in the default group; 0 without a group."""
    return dist.get_rank() if dist.is_initialized() else 0


def number_of_ranks() -> int:
    """Return the number of processes in the default group; 1 without a group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def on_rank_zero(work: Callable[[], T]) -> T:
    """Run `work` on global rank 0 and return its result on every rank; its exception is raised on every rank.

    Collective over the default group. Result and exception are sent as pickles; an exception that cannot be pickled is
    raised on the other ranks as a RuntimeError with its text.
    """
    if not dist.is_initialized():
        return work()
    outcome: list[object] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = work()
        except Exception as error:  # noqa: BLE001  # not swallowed: raised below, here and on every other rank
            outcome[1] = error if _is_picklable(error) else RuntimeError(cause_of(error))
    dist.broadcast_object_list(outcome, src=0)
    if isinstance(outcome[1], BaseException):
        raise outcome[1]
    return outcome[0]  # type: ignore[return-value]  # rank 0 put a T there


MAX_RANKS_NAMED = 3
"""Number of failed ranks that an error message names."""


class RanksFailedError(OSError):
    """Work on every rank failed on some of them; the message names the ranks and their errors."""


def on_every_rank(work: Callable[[], T]) -> T:
    """Run `work` on every rank and return its result here; if it fails on one rank, raise on all ranks.

    Collective over the default group. `work` must not be collective itself, unless it fails on all ranks together: a
    rank that has failed proceeds directly to the exchange of results.

    Raises:
        RanksFailedError: `work` raised on a rank; the message names the first such ranks and their errors.
    """
    results: list[T] = []
    failure, cause = "", None
    try:
        results.append(work())
    except Exception as error:  # noqa: BLE001  # not swallowed: raised below, here and on every other rank
        failure, cause = cause_of(error), error
    failures = [f"rank {rank}: {text}" for rank, text in enumerate(gather(failure)) if text]
    if failures:
        raise RanksFailedError("; ".join(failures[:MAX_RANKS_NAMED])) from cause
    return results[0]


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


def gather(value: T) -> list[T]:
    """Return the value of each rank, in rank order. Collective over the default group."""
    if not dist.is_initialized():
        return [value]
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]  # every entry is filled


def gather_in(value: T, group: Any) -> list[T]:
    """Return the value of each rank of a process group, in its order. Collective over the group."""
    values: list[T | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values  # type: ignore[return-value]  # every entry is filled


def _is_picklable(error: Exception) -> bool:
    try:
        return isinstance(pickle.loads(pickle.dumps(error)), type(error))
    except Exception:  # noqa: BLE001  # custom pickling code may raise anything, and the other ranks wait
        return False
