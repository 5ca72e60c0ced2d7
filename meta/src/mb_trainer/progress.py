"""progress.txt beside the checkpoints: what jobs achieved, over restarts, as other tools read it."""

from collections.abc import Mapping

from mb_checkpoint import SavedCheckpoint, ScheduledSave
from mb_loop import append_to_progress_log, compute_throughputs_and_append_to_progress_log
from mb_loop.progress_log import SAVED_LATER, STARTED
from mb_trainer.state import GlobalState


class ProgressLog:
    """Writes a line when the job begins and one for each lasting checkpoint. One rank has one.

    Args:
        state: counters as loaded, configuration, and when the job began.
        world_size: ranks of this job.
        environment: names the scheduler's job, `SLURM_JOB_ID`.
    """

    def __init__(self, state: GlobalState, *, world_size: int, environment: Mapping[str, str]) -> None:
        self._state = state
        self._world_size, self._job_id = world_size, environment.get("SLURM_JOB_ID", "")
        self._operations = state.train_state.floating_point_operations_so_far
        append_to_progress_log(state.cfg, STARTED, world_size=world_size, job_id=self._job_id)

    def note(self, outcome: SavedCheckpoint | ScheduledSave, *, later: bool) -> None:
        """Write what became of a save; `later`: one that was begun before, in the background."""
        if later:
            append_to_progress_log(
                self._state.cfg,
                f"{SAVED_LATER}\tIteration: {outcome.step}",
                world_size=self._world_size,
                job_id=self._job_id,
            )
            return
        compute_throughputs_and_append_to_progress_log(
            self._state,
            self._state.train_state.floating_point_operations_so_far,
            operations_at_start=self._operations,
            asynchronous=isinstance(outcome, ScheduledSave),
            world_size=self._world_size,
            job_id=self._job_id,
        )
