"""Planned save: steps 2 to 8 of `save.py`, in any layout, at once or in the background."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist

from mb_checkpoint.collectives import (
    RanksFailedError,
    gather_on_rank_zero,
    number_of_ranks,
    on_every_rank,
    on_rank_zero,
    own_rank,
)
from mb_checkpoint.context import SavedCheckpoint, describe_failure
from mb_checkpoint.errors import CheckpointSaveError, cause_of
from mb_checkpoint.formats.checksums import Checksum
from mb_checkpoint.formats.layout import iteration_directory
from mb_checkpoint.formats.manifest import Manifest
from mb_checkpoint.save.async_save import AsyncSave, BackgroundWriterLike
from mb_checkpoint.save.commit import discard, open_staging
from mb_checkpoint.save.commit_barrier import CommitBarrier
from mb_checkpoint.save.finalize import FinalizeJob, finalize_save
from mb_checkpoint.save.planner import WritePlan
from mb_checkpoint.save.retention import PruneJob
from mb_checkpoint.save.writing import DataFile, write_files


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePlan:
    """One rank's part of a save, complete except for the data: its tensors are still those of the training."""

    job: FinalizeJob
    """Destination and commit."""
    files: tuple[DataFile, ...]
    """Data that this rank writes."""


def stage_save(
    root: Path,
    facts: Manifest,
    *,
    plan: Callable[[Path], WritePlan],
    write_small_files: Callable[[Path], object],
    pruning: PruneJob,
    checksum: Checksum,
) -> SavePlan:
    """Create the staging folder, assign each piece of the state to one rank, and write the small files. Collective.

    Args:
        root: Folder that receives the checkpoint.
        facts: The manifest without the list of files.
        plan: Called on all ranks with the staging folder; returns the data that this rank writes there.
        write_small_files: Called on rank 0 with the staging folder.
        pruning: Deletion of old checkpoints.
        checksum: Algorithm of the checksums.

    Raises:
        CheckpointSaveError: Writing failed; the staging folder is removed.
    """
    # Two blocks, because there is no staging folder to remove until rank 0 has made it.
    with cleaned_up(root, facts.step):
        staging = on_rank_zero(lambda: open_staging(root, facts.step))
    with cleaned_up(root, facts.step, staging):
        planned = plan(staging)
        on_rank_zero(lambda: write_small_files(staging))
    job = FinalizeJob(
        root=root,
        staging=staging,
        world_size=number_of_ranks(),
        index=planned.index,
        facts=facts,
        pruning=pruning,
        checksum=checksum,
    )
    return SavePlan(job=job, files=tuple(replace(file, checksum=checksum) for file in planned.files))


def write_and_commit(plan: SavePlan, *, began: float, clock: Callable[[], float]) -> SavedCheckpoint:
    """Write and commit a planned save. Collective; waits for the disk. The caller then runs `plan.job.pruning`.

    Args:
        plan: The save.
        began: Start time of the save on `clock`.
        clock: Monotonic clock in seconds.

    Raises:
        CheckpointSaveError: Writing failed; see `save.save_checkpoint`.
    """
    job = plan.job
    with cleaned_up(job.root, job.step, job.staging):
        results = gather_on_rank_zero(on_every_rank(lambda: write_files(job.staging, plan.files)))
        total_bytes = on_rank_zero(lambda: finalize_save(job, results=results))
    return SavedCheckpoint(
        path=iteration_directory(job.root, job.step),
        step=job.step,
        seconds=clock() - began,
        total_bytes=total_bytes,
    )


def start_in_background(
    plan: SavePlan, writer: BackgroundWriterLike, *, began: float, clock: Callable[[], float]
) -> AsyncSave:
    """Copy the tensors of a planned save to host memory, and let the writer process write them. Collective.

    Returns the save in flight, to be polled. Arguments as `write_and_commit`, and the writer process of this rank.

    Raises:
        CheckpointSaveError: The writer of a rank could not be started; the staging folder is removed.
    """
    job, rank = plan.job, own_rank()
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
    return AsyncSave(job, began=began, is_rank_zero=rank == 0, writer=writer, barrier=barrier, clock=clock)


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
