"""Planned save: steps 3 to 8 of `save.py`, at once or in the background."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from mb_checkpoint.collectives import (
    RanksFailedError,
    gather_on_rank_zero,
    on_every_rank,
    on_rank_zero,
    own_rank,
)
from mb_checkpoint.context import SavedCheckpoint, ScheduledSave, describe_failure
from mb_checkpoint.errors import CheckpointSaveError, cause_of
from mb_checkpoint.save.async_save import AsyncSave, AsyncWriterLike
from mb_checkpoint.save.commit import discard
from mb_checkpoint.save.commit_barrier import CommitBarrier
from mb_checkpoint.save.finalize import FinalizeJob, finalize_save
from mb_checkpoint.save.writing import DataFile, write_files


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePlan:
    """One rank's part of a save, complete except for the data: its tensors are still those of the training."""

    job: FinalizeJob
    """Destination and commit."""
    files: tuple[DataFile, ...]
    """Data that this rank writes."""
    rank: int
    """Global rank of this process."""
    began: float
    """Start time in seconds, on the clock of the save."""


class BackgroundWriterLike(AsyncWriterLike, Protocol):
    """Background writer; `background_writer.BackgroundWriter` matches."""

    @property
    def staged_bytes(self) -> int:
        """Size in bytes of the host memory allocated for copies."""

    @property
    def pid(self) -> int | None:
        """Process id of the writer."""

    def write(self, folder: Path, rank: int, files: Sequence[DataFile]) -> None:
        """Copy the tensors and submit a job that writes them."""

    def stop(self) -> None:
        """Kill the process; the next job starts another one."""

    def close(self) -> None:
        """Kill the process and release its resources."""


def write_and_commit(plan: SavePlan, *, clock: Callable[[], float]) -> SavedCheckpoint:
    """Write and commit a planned save. Collective; waits for the disk. The caller then runs `plan.job.pruning`.

    Args:
        plan: The save.
        clock: Monotonic clock in seconds, that of the plan.

    Raises:
        CheckpointSaveError: Writing failed; see `save.save_checkpoint`.
    """
    job = plan.job
    with cleaned_up(job.root, job.step, job.staging):
        results = gather_on_rank_zero(on_every_rank(lambda: write_files(job.staging, plan.files)))
        finalized = on_rank_zero(lambda: finalize_save(job, results=results))
    return SavedCheckpoint(
        path=finalized.path,
        step=job.step,
        seconds=clock() - plan.began,
        total_bytes=finalized.total_bytes,
    )


def start_in_background(
    plan: SavePlan, writer: BackgroundWriterLike, *, clock: Callable[[], float]
) -> tuple[AsyncSave, ScheduledSave]:
    """Copy the tensors of a planned save to host memory, and let the writer process write them. Collective.

    Args:
        plan: The save.
        writer: Writer process of this rank.
        clock: Monotonic clock in seconds, that of the plan.

    Returns:
        The save in flight, to be polled, and its record for the caller.

    Raises:
        CheckpointSaveError: The writer of a rank could not be started; the staging folder is removed.
    """
    job, rank = plan.job, plan.rank
    with cleaned_up(job.root, job.step, job.staging):
        # When this returns, the data is on the host, and the training may change its tensors. The ranks agree here only
        # that all jobs have started; that all have ended is agreed later, over the store, when the training polls.
        on_every_rank(lambda: writer.write(job.staging, rank, plan.files))
    barrier = CommitBarrier(
        dist.distributed_c10d._get_default_store() if job.world_size > 1 else None,
        rank=rank,
        world_size=job.world_size,
        # unique within a run, because it has a random part: a step may be saved again after a failure
        name=job.staging.name,
    )
    pending = AsyncSave(
        job, began=plan.began, is_rank_zero=rank == 0, writer=writer, barrier=barrier, clock=clock
    )
    scheduled = ScheduledSave(
        root=job.root, step=job.step, seconds=clock() - plan.began, staged_bytes=writer.staged_bytes
    )
    return pending, scheduled


@contextmanager
def cleaned_up(root: Path, step: int, staging: Path | None = None) -> Iterator[None]:
    """If the block fails, remove the staging folder on rank 0, and raise an OSError as a CheckpointSaveError."""
    try:
        yield
    except BaseException as error:
        if staging is not None and own_rank() == 0:
            discard(staging)
        if not isinstance(error, OSError):
            raise
        reason = str(error) if isinstance(error, RanksFailedError) else cause_of(error)
        raise CheckpointSaveError(describe_failure(root, step, reason)) from error
