"""Writer of progress.txt in the checkpoint folder: progress over restarts, in the format that other tools parse."""

from collections.abc import Callable, Mapping

from mb_checkpoint import SavedCheckpoint, ScheduledSave
from mb_loop import (
    ProgressLogError,
    append_to_progress_log,
    compute_throughputs_and_append_to_progress_log,
)
from mb_loop.progress_log import FILE_NAME, SAVED_LATER, STARTED
from mb_trainer.state import GlobalState


class ProgressLog:
    """Log with one line for the start of a job and one for each persistent checkpoint. Used on one rank.

    A line that cannot be written, for example on a full disk, is reported and dropped; training continues on all ranks.

    Args:
        state: counters as loaded, configuration, and start time of the job.
        world_size: ranks of this job.
        environment: variables; `SLURM_JOB_ID` names the scheduler's job.
        say: logs a line.
    """

    def __init__(
        self,
        state: GlobalState,
        *,
        world_size: int,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._state = state
        self._say = say
        self._world_size, self._job_id = world_size, environment.get("SLURM_JOB_ID", "")
        self._operations = state.train_state.floating_point_operations_so_far
        self._try(lambda: self._append(STARTED))

    def note(self, outcome: SavedCheckpoint | ScheduledSave, *, later: bool) -> None:
        """Record the outcome of a save; `later` marks one that was started before, in the background."""
        if later:
            self._try(lambda: self._append(f"{SAVED_LATER}\tIteration: {outcome.step}"))
        else:
            self._try(lambda: self._append_throughputs(outcome))

    def _append(self, text: str) -> None:
        append_to_progress_log(self._state.cfg, text, world_size=self._world_size, job_id=self._job_id)

    def _append_throughputs(self, outcome: SavedCheckpoint | ScheduledSave) -> None:
        compute_throughputs_and_append_to_progress_log(
            self._state,
            self._state.train_state.floating_point_operations_so_far,
            operations_at_start=self._operations,
            asynchronous=isinstance(outcome, ScheduledSave),
            world_size=self._world_size,
            job_id=self._job_id,
        )

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, ProgressLogError) as error:
            self._say(f"warning: {FILE_NAME} lacks a line: {error}")
