"""Deletion of old checkpoints after a save has been reported, by rank 0 alone."""

import time
from collections.abc import Callable
from pathlib import Path

from mb_checkpoint.collectives import own_rank
from mb_checkpoint.errors import cause_of
from mb_checkpoint.save.async_save import POLL_SECONDS, BackgroundWriterLike
from mb_checkpoint.save.retention import PruneJob, PruneResult


class Pruning:
    """Deletions of the saves of one run, one at a time; each is reported once it is done.

    Args:
        log: Receives a line for each folder that could not be deleted, and once for each that is damaged.
        sleep: Function that waits for a number of seconds.
    """

    def __init__(self, log: Callable[[str], object], *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._log = log
        self._sleep = sleep
        self._in_progress: tuple[PruneJob, BackgroundWriterLike] | None = None
        self._damaged: set[tuple[Path, str]] = set()

    def start(self, job: PruneJob, writer: BackgroundWriterLike | None) -> None:
        """Delete what a save leaves to delete: in the idle writer process, or without one before this returns.

        Does nothing on other ranks than 0.
        """
        if own_rank() or job.keep == -1:
            return
        try:
            if writer is None:
                self._report(job.run())
            else:
                writer.submit(job)
                self._in_progress = job, writer
        except OSError as error:
            self._failed(job, cause_of(error))

    def poll(self, *, blocking: bool) -> None:
        """Report the deletion in progress if it is done, or wait for it. Not collective."""
        while self._in_progress is not None:
            job, writer = self._in_progress
            result = writer.result()
            if result is not None:
                self._in_progress = None
                if result.pruned is None:
                    self._failed(job, str(result.failure))
                else:
                    self._report(result.pruned)
            elif blocking:
                self._sleep(POLL_SECONDS)
            else:
                return

    def cancel(self) -> None:
        """Forget the deletion in progress, whose process has been ended. The next save deletes what is left."""
        self._in_progress = None

    def _failed(self, job: PruneJob, reason: str) -> None:
        self._log(f"could not delete old checkpoints in {job.root}: {reason}. The next save tries again.")

    def _report(self, pruned: PruneResult) -> None:
        for path, reason in pruned.not_removed:
            self._log(f"could not delete the old checkpoint {path}: {reason}")
        for path, reason in pruned.damaged:
            if (path, reason) not in self._damaged:  # each save finds it again
                self._log(f"checkpoint {path} does not count as one to keep: {reason}")
            self._damaged.add((path, reason))
