"""Callback that writes progress.txt, the progress over restarts in the format that other tools parse."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mb_loop.progress.progress_log import (
    FILE_NAME,
    SAVED_LATER,
    STARTED,
    ProgressLogError,
    ProgressState,
    append_to_progress_log,
    compute_throughputs_and_append_to_progress_log,
)

if TYPE_CHECKING:
    from mb_loop.callbacks import CallbackContext


class LoggingRank(Protocol):
    """Rank of this process."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def is_logging_rank(self) -> bool:
        """Whether this rank logs for all."""


class ProgressRecorder:
    """Callback with one line for the start of a job and one for each persistent checkpoint.

    A save in the background has a line at its start, with the throughput, and one when the checkpoint is complete.
    Register the callback on one rank. A line that cannot be written, for example on a full disk, is reported and
    dropped; training continues on all ranks.

    Args:
        state: Counters as loaded, configuration, and start time of the job.
        world_size: Ranks of this job.
        print_line: Logs a line.
        job_id: ID of the job at the scheduler; None: SLURM_JOB_ID, or empty outside of Slurm.
    """

    def __init__(
        self,
        state: ProgressState,
        *,
        world_size: int,
        print_line: Callable[[str], None],
        job_id: str | None = None,
    ) -> None:
        self._state, self._world_size = state, world_size
        self._print_line = print_line
        self._job_id = os.environ.get("SLURM_JOB_ID", "") if job_id is None else job_id
        self._operations_at_start = state.train_state.floating_point_operations_so_far
        self._scheduled: int | None = None  # step of the save in the background that has its first line

    def on_train_start(self, context: CallbackContext) -> None:
        """Write the line of the start."""
        self._try(lambda: self._append(STARTED))

    def on_checkpoint_scheduled(self, context: CallbackContext) -> None:
        """Write the line of a save that continues in the background."""
        save = context.save
        if save is not None and not save.non_persistent:
            self._scheduled = save.step
            self._try(lambda: self._append_throughputs(asynchronous=True))

    def on_checkpoint_save(self, context: CallbackContext) -> None:
        """Write the line of a complete checkpoint."""
        save = context.save
        if save is None or save.non_persistent:
            return
        if save.step == self._scheduled:
            self._scheduled = None
            self._try(lambda: self._append(f"{SAVED_LATER}\tIteration: {save.step}"))
        else:
            self._try(lambda: self._append_throughputs(asynchronous=False))

    def on_checkpoint_failed(self, context: CallbackContext) -> None:
        """Forget a background save that failed; its line at the start remains, as of a job that was killed."""
        if context.save is not None and context.save.step == self._scheduled:
            self._scheduled = None

    def _append(self, text: str) -> None:
        append_to_progress_log(self._state.cfg, text, world_size=self._world_size, job_id=self._job_id)

    def _append_throughputs(self, *, asynchronous: bool) -> None:
        compute_throughputs_and_append_to_progress_log(
            self._state,
            self._state.train_state.floating_point_operations_so_far,
            operations_at_start=self._operations_at_start,
            asynchronous=asynchronous,
            world_size=self._world_size,
            job_id=self._job_id,
        )

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, ProgressLogError) as error:
            self._print_line(f"warning: {FILE_NAME} lacks a line: {error}")


def progress_recorders(
    state: ProgressState, *, world: LoggingRank, print_line: Callable[[str], None]
) -> list[ProgressRecorder]:
    """Return the callback that writes progress.txt, on the logging rank if `logger.log_progress` is set.

    Args:
        state: counters as loaded, configuration, and start time of the job.
        world: rank of this process.
        print_line: logs a line.
    """
    logger = state.cfg.logger
    if logger is None or not (logger.log_progress and world.is_logging_rank):
        return []
    return [ProgressRecorder(state, world_size=world.world_size, print_line=print_line)]
