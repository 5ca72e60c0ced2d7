"""Work on one or every rank, with result and failure sent to all ranks, so that none blocks on a failed one.

A process without a process group is a single rank. Objects travel through host memory (`host_group`).
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
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


_host_groups: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Process group -> the gloo group of the same ranks."""


def host_group(group: Any | None = None) -> Any:
    """Return a process group of the same ranks that sends from host memory: the group itself, or a gloo group.

    NCCL alone takes objects through GPU memory: N times the largest one on each rank, and channels from the first rank
    to all others that are never freed. Collective over the ranks of the group, which is opened at the first call.

    Args:
        group: The process group; None: the default one.
    """
    group = dist.group.WORLD if group is None else group
    if "cpu:" in dist.get_backend_config(group):
        return group
    if group not in _host_groups:
        # A rank connects to its neighbours in a ring when they first communicate, and not to all others at once.
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
        _host_groups[group] = dist.new_group(
            dist.get_process_group_ranks(group), backend="gloo", use_local_synchronization=True
        )
    return _host_groups[group]


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
    dist.broadcast_object_list(outcome, src=0, group=host_group())
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
    if any_rank(bool(failure)):
        failures = [f"rank {rank}: {text}" for rank, text in enumerate(gather(failure)) if text]
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
        raise _read_error(path, str(error), after) from error


def read_for_all_ranks(path: Path, read: Callable[[], T]) -> T:
    """Read on rank 0, and return the result on all ranks. Collective.

    Raises:
        CheckpointReadError: Rank 0 could not read it.
    """

    def attempt() -> T:
        try:
            return read()
        except Exception as error:
            raise _read_error(path, f"rank 0: {cause_of(error)}", "nothing was changed") from error

    return on_rank_zero(attempt)


def _read_error(path: Path, causes: str, after: str) -> CheckpointReadError:
    return CheckpointReadError(
        f"{path}: could not be read ({causes}), and {after}. See that every rank reaches the folder, look at it "
        "with verify_checkpoint, or load another checkpoint."
    )


def any_rank(flag: bool) -> bool:
    """Return whether a flag is set on any rank. Collective over the default group; 8 bytes, whatever its size."""
    return bool(highest([int(flag)])[0])


def highest(values: list[int]) -> list[int]:
    """Return the highest of the values of all ranks at each position. Collective over the default group.

    Args:
        values: Numbers of 63 bits, as many on each rank.
    """
    if not dist.is_initialized():
        return values
    numbers = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=host_group())
    return numbers.tolist()


def gather(value: T) -> list[T]:
    """Return the value of each rank, in rank order. Collective over the default group.

    Each rank receives the values of all: for small ones, or where few of them are not empty.
    """
    if not dist.is_initialized():
        return [value]
    return gather_in(value, None)


def gather_on_rank_zero(value: T) -> list[T]:
    """Return the value of each rank on rank 0, in rank order, and an empty list on the others. Collective."""
    if not dist.is_initialized():
        return [value]
    values: list[T | None] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values, group=host_group())
    return values or []  # type: ignore[return-value]  # every entry is filled


def scatter_from_rank_zero(work: Callable[[], list[T]]) -> T:
    """Run `work` on rank 0, and return the value that it has for this rank; as `on_rank_zero`. Collective."""
    values: list[T] = []
    on_rank_zero(lambda: values.extend(work()))
    if not dist.is_initialized():
        return values[0]
    received: list[Any] = [None]
    dist.scatter_object_list(received, values or None, group=host_group())
    return received[0]  # type: ignore[no-any-return]  # rank 0 put a T there


def gather_in(value: T, group: Any) -> list[T]:
    """Return the value of each rank of a process group, in its order. Collective over the group; None: the default."""
    values: list[T | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=host_group(group))
    return values  # type: ignore[return-value]  # every entry is filled


def _is_picklable(error: Exception) -> bool:
    try:
        return isinstance(pickle.loads(pickle.dumps(error)), type(error))
    except Exception:  # noqa: BLE001  # custom pickling code may raise anything, and the other ranks wait
        return False
