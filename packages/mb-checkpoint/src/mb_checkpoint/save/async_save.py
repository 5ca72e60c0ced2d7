"""Background save in flight: from staged tensors to a committed checkpoint or a failure."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mb_checkpoint.context import FailedSave, SavedCheckpoint, describe_failure
from mb_checkpoint.errors import cause_of
from mb_checkpoint.formats.layout import iteration_directory
from mb_checkpoint.formats.manifest import read_manifest
from mb_checkpoint.formats.trackers import tracked_steps
from mb_checkpoint.save.commit import discard
from mb_checkpoint.save.commit_barrier import CommitBarrier
from mb_checkpoint.save.finalize import FinalizeJob
from mb_checkpoint.save.retention import PruneJob
from mb_checkpoint.save.worker import JobResult, WriterJob
from mb_checkpoint.save.writing import DataFile

POLL_SECONDS = 0.01
LONGEST_POLL_SECONDS = 1.0
"""Pauses between two polls that block: of the local writer, and at most of the store, which all ranks read."""


class BackgroundWriterLike(Protocol):
    """Background process of a rank; `background_writer.BackgroundWriter` matches."""

    @property
    def staged_bytes(self) -> int:
        """Size in bytes of the host memory allocated for copies."""

    def write(self, folder: Path, rank: int, files: Sequence[DataFile]) -> None:
        """Copy the tensors and submit a job that writes them."""

    def submit(self, job: WriterJob) -> None:
        """Submit the next job."""

    def result(self) -> JobResult | None:
        """Return the result of the last job, once."""

    def stop(self) -> None:
        """Kill the process; the next job starts another one."""

    def close(self) -> None:
        """Kill the process and release its resources."""


class AsyncSave:
    """Background save in flight; poll it on all ranks the same number of times.

    Args:
        job: Commit of the save, which rank 0 submits to its writer.
        began: Start time of the save on `clock`.
        is_rank_zero: Whether this rank commits.
        writer: Writer that has the data of this rank as its job.
        barrier: Agreement with the other ranks.
        clock: Monotonic clock in seconds.
        sleep: Function that waits for a number of seconds.
    """

    def __init__(
        self,
        job: FinalizeJob,
        *,
        began: float,
        is_rank_zero: bool,
        writer: BackgroundWriterLike,
        barrier: CommitBarrier,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._job = job
        self._began = began
        self._is_rank_zero = is_rank_zero
        self._writer = writer
        self._barrier = barrier
        self._clock = clock
        self._sleep = sleep
        self._reported = False
        self._finishing = False
        self._total_bytes: int | None = None

    @property
    def pruning(self) -> PruneJob:
        """Deletion of old checkpoints, once the save has been reported."""
        return self._job.pruning

    def poll(self, *, blocking: bool) -> SavedCheckpoint | FailedSave | None:
        """Return the result of the save, at the same poll on all ranks; None while it is in progress.

        Not a collective. With `blocking`, waits for the result.
        """
        self._report()  # first, so that rank 0 counts its own result at the same poll
        outcome = self._wait() if blocking else self._barrier.decide(self._outcome())
        return None if outcome is None else self._record(json.loads(outcome))

    def _wait(self) -> str:
        """Return the outcome. Reads the store only once this rank is done, in pauses that grow with the wait."""
        pause = POLL_SECONDS
        while True:
            if self._reported or self._is_rank_zero:
                outcome = self._barrier.decide_now(self._outcome())
                if outcome is not None:
                    return outcome
                pause = min(1.2 * pause, LONGEST_POLL_SECONDS)
            self._sleep(pause if self._reported else POLL_SECONDS)
            self._report()

    def _report(self) -> None:
        result = None if self._reported else self._writer.result()
        if result is not None:
            self._reported = True
            self._barrier.report(result.failure or "")

    def _outcome(self) -> str | None:
        """Return on rank 0, once known, the outcome as JSON: reasons of a failure, and the number of bytes written."""
        if not self._is_rank_zero:
            return None
        failures = self._commit() if self._finishing else self._begin_commit()
        if failures is None:
            return None
        return json.dumps({"failures": failures, "total_bytes": self._total_bytes})

    def _begin_commit(self) -> list[str] | None:
        failures = self._barrier.failures()
        if failures is None:
            return None
        if not failures:
            try:
                # In the writer process: hashing and fsync of the small files may take seconds, in which rank 0,
                # and with it every other rank, would not train.
                self._writer.submit(self._job)
                self._finishing = True
            except OSError as error:
                failures = [f"rank 0: {cause_of(error)}"]
        return failures or None

    def _commit(self) -> list[str] | None:
        result = self._writer.result()
        if result is None:
            return None
        # A writer that dies between its commit and its answer leaves a complete checkpoint, which is no failed save.
        self._total_bytes = self._committed_bytes() if result.total_bytes is None else result.total_bytes
        return [f"rank 0: {result.failure}"] if self._total_bytes is None else []

    def _committed_bytes(self) -> int | None:
        """Return the size of the checkpoint if the writer failed after its commit, else None."""
        root, step = self._job.root, self._job.step
        if self._job.staging.exists() or step not in tracked_steps(root):
            return None
        manifest = read_manifest(iteration_directory(root, step))
        return None if manifest is None else manifest.total_bytes

    def _record(self, outcome: Mapping[str, Any]) -> SavedCheckpoint | FailedSave:
        job, seconds = self._job, self._clock() - self._began
        failures = outcome["failures"]
        if failures:
            if self._is_rank_zero:
                discard(job.staging)
            message = describe_failure(job.root, job.step, "; ".join(failures))
            return FailedSave(root=job.root, step=job.step, message=message, seconds=seconds)
        return SavedCheckpoint(
            path=iteration_directory(job.root, job.step),
            step=job.step,
            seconds=seconds,
            total_bytes=outcome["total_bytes"],
        )
