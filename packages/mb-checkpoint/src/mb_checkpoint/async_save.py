"""Background save in flight: from staged tensors to a committed checkpoint or a failure."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mb_checkpoint.commit import discard
from mb_checkpoint.commit_barrier import CommitBarrier
from mb_checkpoint.context import FailedSave, SavedCheckpoint, describe_failure
from mb_checkpoint.errors import cause_of
from mb_checkpoint.finalize import FinalizedSave, FinalizeJob
from mb_checkpoint.layout import iteration_directory
from mb_checkpoint.worker import JobResult, WriterJob

POLL_SECONDS = 0.01


class AsyncWriterLike(Protocol):
    """Background writer with a job in progress; `background_writer.BackgroundWriter` matches."""

    def submit(self, job: WriterJob) -> None:
        """Submit the next job."""

    def result(self) -> JobResult | None:
        """Return the result of the last job, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightSave:
    """Parameters of a save in flight, on every rank."""

    root: Path
    step: int
    staging: Path
    began: float
    """Start time on the clock of the save."""
    job: FinalizeJob | None
    """Finalization, on rank 0."""


class AsyncSave:
    """Background save in flight; poll it on all ranks the same number of times.

    Args:
        save: Parameters of the save.
        writer: Writer that has the data of this rank as its job.
        barrier: Agreement with the other ranks.
        clock: Clock of `save.began`.
        sleep: Function that waits for a number of seconds.
    """

    def __init__(
        self,
        save: InFlightSave,
        *,
        writer: AsyncWriterLike,
        barrier: CommitBarrier,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._save = save
        self._writer = writer
        self._barrier = barrier
        self._clock = clock
        self._sleep = sleep
        self._reported = False
        self._finishing = False
        self._finished: FinalizedSave | None = None

    @property
    def step(self) -> int:
        """Step of the save."""
        return self._save.step

    def poll(self, *, blocking: bool) -> SavedCheckpoint | FailedSave | None:
        """Return the result of the save, at the same poll on all ranks; None while it is in progress.

        Not a collective. With `blocking`, waits for the result.
        """
        while True:
            self._report()
            outcome = self._barrier.decide(self._outcome())
            if outcome is not None:
                return self._record(json.loads(outcome))
            if not blocking:
                return None
            self._sleep(POLL_SECONDS)

    def _report(self) -> None:
        result = None if self._reported else self._writer.result()
        if result is not None:
            self._reported = True
            self._barrier.report(result.failure or "")

    def _outcome(self) -> str | None:
        """Return on rank 0, once known, the outcome as JSON: reasons of a failure, and the number of bytes written."""
        if self._save.job is None:
            return None
        failures = self._commit() if self._finishing else self._begin_commit(self._save.job)
        if failures is None:
            return None
        written = 0 if self._finished is None else self._finished.total_bytes
        return json.dumps({"failures": failures, "total_bytes": written})

    def _begin_commit(self, job: FinalizeJob) -> list[str] | None:
        reports = self._barrier.reports()
        if reports is None:
            return None
        failures = [f"rank {rank}: {failure}" for rank, failure in enumerate(reports) if failure]
        if not failures:
            try:
                self._writer.submit(job)
                self._finishing = True
            except OSError as error:
                failures = [f"rank 0: {cause_of(error)}"]
        return failures or None

    def _commit(self) -> list[str] | None:
        result = self._writer.result()
        if result is None:
            return None
        self._finished = result.finished
        return [] if result.failure is None else [f"rank 0: {result.failure}"]

    def _record(self, outcome: Mapping[str, Any]) -> SavedCheckpoint | FailedSave:
        save, seconds = self._save, self._clock() - self._save.began
        failures = outcome["failures"]
        if failures:
            if save.job is not None:
                discard(save.staging)
            message = describe_failure(save.root, save.step, "; ".join(failures))
            return FailedSave(root=save.root, step=save.step, message=message, seconds=seconds)
        return describe_saved(save, self._finished, seconds=seconds, total_bytes=outcome["total_bytes"])


def describe_saved(
    save: InFlightSave, finished: FinalizedSave | None, *, seconds: float, total_bytes: int = 0
) -> SavedCheckpoint:
    """Return the record of a committed save; on ranks without `finished`, the size is `total_bytes`."""
    if finished is None:
        return SavedCheckpoint(
            path=iteration_directory(save.root, save.step),
            step=save.step,
            seconds=seconds,
            total_bytes=total_bytes,
        )
    return SavedCheckpoint(
        path=finished.path,
        step=save.step,
        seconds=seconds,
        total_bytes=finished.total_bytes,
        pruned=finished.pruned,
    )
