"""The training loop's checkpointer, on top of the checkpoint manager."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import (
    CheckpointManager,
    CheckpointSaveContext,
    CheckpointSaveError,
    FailedSave,
    SavedCheckpoint,
    ScheduledSave,
)
from mb_checkpoint.context import RerunStateMachineLike
from mb_data import save_tokenizer
from mb_loop import SaveResult
from mb_metrics.names import FAILED_SAVES
from mb_trainer.config import ConfigContainer
from mb_trainer.data import Vocabulary
from mb_trainer.trainee import Trainee

MOST_PATIENCE = 64
"""Maximum number of steps between two attempts after a failed save."""


class Events(Protocol):
    """Writer of events; `EventLog.write` implements it."""

    def __call__(self, event: str, **fields: object) -> None:
        """Write one event."""


class Progress(Protocol):
    """Log of persistent checkpoints; `ProgressLog` implements it."""

    def note(self, outcome: SavedCheckpoint | ScheduledSave, *, later: bool) -> None:
        """Record a save; `later` marks one that was started at an earlier step."""


class Saves:
    """Checkpointer of the training loop that passes each save to the checkpoint manager. Collective over the world.

    A save that fails, also in the background, is retried before the next step, then after 2, 4, ... steps; training
    continues meanwhile. At the end of the run it is retried one last time, and a failure is then an error. With
    `checkpoint.on_save_error=raise` the manager raises by itself and ends the run at once.

    Args:
        manager: writes the checkpoints.
        state: counters and configuration.
        trainee: model, optimizer and scheduler.
        groups: process groups.
        say: logs a line.
        events: writes an event, on the rank that writes events.
        pause: context manager that flushes the metrics of every step so far, so that a resumed run has no gap, and
            stops the step clock while a checkpoint is written.
        whole: context manager in which all parameters are gathered.
        data: training iterator; its position is stored if it is stateful.
        kept: called with each complete persistent checkpoint, on every rank.
        reruns: rerun state machine whose state is stored; None: there is none.
        progress: records persistent checkpoints, on the rank that writes progress.txt.
        clock: monotonic clock in seconds.
    """

    def __init__(  # noqa: PLR0913 - parts, each by name
        self,
        manager: CheckpointManager,
        *,
        state: Any,
        trainee: Trainee,
        groups: ProcessGroupCollection,
        say: Callable[[str], None],
        events: Events,
        pause: Callable[[], AbstractContextManager[None]],
        whole: Callable[[], AbstractContextManager[None]],
        data: Any = None,
        kept: Callable[[SavedCheckpoint], None] | None = None,
        reruns: RerunStateMachineLike | None = None,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._state = state
        self._trainee = trainee
        self._groups = groups
        self._say = say
        self._events = events
        self._pause = pause
        self._whole = whole
        self._data = data
        self._kept = kept
        self._reruns = reruns
        self._progress = progress
        self._non_persistent = False
        self._begun = 0
        self._clock = clock
        self._began = 0.0
        self._held: float | None = None
        self._failures = 0
        self._wait: int | None = None
        self._reason = ""
        self._patience = 1

    @property
    def values(self) -> Mapping[str, float]:
        """Return the step metrics of saves: the number of failed ones so far, if there are any."""
        return {FAILED_SAVES: float(self._failures)} if self._failures else {}

    def save(self, step: int, *, non_persistent: bool) -> list[SaveResult]:
        """Write or start a checkpoint of this step, and print the line that log parsers match."""
        context = CheckpointSaveContext(
            state=self._state,
            model=self._trainee.chunks,
            optimizer=self._trainee.optimizer,
            opt_param_scheduler=self._trainee.scheduler,
            num_floating_point_operations_so_far=self._state.train_state.floating_point_operations_so_far,
            non_persistent_ckpt=non_persistent,
            adapter_key_filter=adapter_filter(self._state.cfg),
            pg_collection=self._groups,
            rerun_state_machine=self._reruns,
            train_data_iterator=self._data,
        )
        with self._pause():
            ended = self._finalize(blocking=True)
            self._began, self._held, self._non_persistent, self._begun = (
                self._clock(),
                None,
                non_persistent,
                step,
            )
            outcome = self._manager.save(context, None)
            self._hear(outcome)
            self._held = self._clock() - self._began
        return ended if isinstance(outcome, ScheduledSave) else [*ended, self._end(outcome)]

    def poll(self, *, blocking: bool) -> list[SaveResult]:
        """Finalize background saves; retry a failed save if its retry is due.

        Raises:
            CheckpointSaveError: blocking, and the last save failed twice.
        """
        ended = self._finalize(blocking=blocking, terminate=blocking)
        if self._wait is None:
            return ended
        self._wait -= 1
        if blocking or self._wait <= 0:
            step = self._state.train_state.step
            with self._whole():
                ended += self.save(step, non_persistent=False)
            if blocking:
                ended += self._finish()
        return ended

    def _finish(self) -> list[SaveResult]:
        ended = self._finalize(blocking=True, terminate=True)
        if self._wait is not None:
            raise CheckpointSaveError(
                f"checkpoint of the last step, {self._state.train_state.step}: could not be written in two tries; "
                f"the second ended with: {self._reason}"
            )
        return ended

    def _finalize(self, *, blocking: bool, terminate: bool = False) -> list[SaveResult]:
        """Poll the background save in flight, which is the one started last."""
        outcome = self._manager.finalize_async_saves(self._state, blocking=blocking, terminate=terminate)
        self._hear(outcome)
        return [] if outcome is None else [self._end(outcome)]

    def _end(self, outcome: object) -> SaveResult:
        """Return the result for the loop; a custom manager that returns none of the known records counts as saved."""
        return SaveResult(
            step=self._begun, non_persistent=self._non_persistent, written=not isinstance(outcome, FailedSave)
        )

    def _hear(self, outcome: object) -> None:
        """Process the outcome of a save, which is identical on all ranks."""
        if outcome is None:
            return
        if isinstance(outcome, FailedSave):
            self._failures += 1
            self._wait, self._patience = self._patience, min(2 * self._patience, MOST_PATIENCE)
            self._reason = outcome.message
            self._events("save_failed", step=outcome.step, reason=outcome.message)
            self._say(f"error: {outcome.message}")
            return
        if isinstance(outcome, SavedCheckpoint):
            self._wait, self._patience = None, 1
            held = self._clock() - self._began if self._held is None else self._held
            self._events(
                "save",
                step=outcome.step,
                seconds=held,
                write_seconds=outcome.seconds,
                bytes=outcome.total_bytes,
            )
            if self._kept is not None and not self._non_persistent:
                self._kept(outcome)
        if (
            isinstance(outcome, SavedCheckpoint | ScheduledSave)
            and self._progress
            and not self._non_persistent
        ):
            self._progress.note(outcome, later=self._held is not None)
        message = getattr(outcome, "message", None)  # a custom manager's outcome may lack a message
        if message is not None:
            self._say(f"  {message}")


def adapter_filter(config: ConfigContainer) -> Callable[[str], bool] | None:
    """Return the predicate of the parameters that a checkpoint holds; None: all of them."""
    return None if config.peft is None else config.peft.is_adapter


def write_tokenizer(vocabulary: Vocabulary) -> Callable[[Path], None]:
    """Return a function that writes the tokenizer's files into a checkpoint, which can then be used alone."""

    def write(folder: Path) -> None:
        save_tokenizer(vocabulary.tokenizer, folder)

    return write
