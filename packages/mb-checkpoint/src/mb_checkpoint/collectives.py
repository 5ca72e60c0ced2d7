"""Work that one rank does and all ranks learn of, failure included, so that nobody waits for the dead."""

import pickle
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


def require_process_group() -> None:
    """Make sure that torch.distributed is initialised, with one process too.

    Raises:
        RuntimeError: It is not.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "mb_checkpoint: torch.distributed is not initialised, and a distributed checkpoint needs it even "
            "with one process. Call torch.distributed.init_process_group first."
        )


def on_rank_zero(work: Callable[[], T]) -> T:
    """Run `work` on global rank 0 and return its result on every rank; its exception is raised on every rank.

    Collective over the default group. Result and exception travel as pickles; an exception that cannot be
    pickled arrives elsewhere as a RuntimeError with its text.
    """
    outcome: list[object] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = work()
        except Exception as error:  # noqa: BLE001  # not swallowed: raised below, here and on every other rank
            outcome[1] = error if _travels(error) else RuntimeError(f"{type(error).__name__}: {error}")
    dist.broadcast_object_list(outcome, src=0)
    if isinstance(outcome[1], BaseException):
        raise outcome[1]
    return outcome[0]  # type: ignore[return-value]  # rank 0 put a T there


MAX_RANKS_NAMED = 3
"""Ranks that the message of a failure names."""


class RanksFailedError(OSError):
    """Work that every rank did failed on some; the message says where and why."""


def on_every_rank(work: Callable[[], T]) -> T:
    """Run `work` on every rank and return its result here; where it fails on one, raise on all.

    Collective over the default group. `work` itself must not be, or must fail on all ranks alike: a rank that has
    failed goes on to where the others come with their results.

    Raises:
        RanksFailedError: It raised on a rank; the message names the first such ranks and their errors.
    """
    results: list[T] = []
    words, cause = "", None
    try:
        results.append(work())
    except Exception as error:  # noqa: BLE001  # not swallowed: raised below, here and on every other rank
        words, cause = f"{type(error).__name__}: {error}", error
    failures = [f"rank {rank}: {each}" for rank, each in enumerate(gather(words)) if each]
    if failures:
        raise RanksFailedError("; ".join(failures[:MAX_RANKS_NAMED])) from cause
    return results[0]


def gather(value: T) -> list[T]:
    """Return the value of each rank, in order of rank. Collective over the default group."""
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]  # every place is filled


def _travels(error: Exception) -> bool:
    try:
        return isinstance(pickle.loads(pickle.dumps(error)), type(error))
    except Exception:  # noqa: BLE001  # the error's own code runs; the other ranks wait for an answer, whatever it does
        return False
