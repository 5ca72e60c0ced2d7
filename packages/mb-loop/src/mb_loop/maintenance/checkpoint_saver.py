"""Checkpoint schedule: saves that are due, at most once per step."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from mb_loop.callbacks import CheckpointWork, EventDispatcher
from mb_loop.errors import TrainSettingsError
from mb_loop.settings import CheckpointSettings
from mb_loop.step.hooks import ForwardPreHooks
from mb_schema.save_result import SaveResult


class Checkpointer(Protocol):
    """Writer of checkpoints. All methods are called on all ranks, after the same step.

    `save` and `poll` return the saves that have ended since the last call, identical on all ranks. For `save` these are
    the save itself, unless it continues in the background. A class that derives from this Protocol inherits `may_wait`,
    `wait` and `retry_due` for a checkpointer that saves at once and repeats nothing.
    """

    @property
    def may_wait(self) -> bool:
        """Whether the next poll may hold the loop, because a background save is in flight."""
        return False

    def save(self, step: int, *, non_persistent: bool) -> Sequence[SaveResult]:
        """Write a checkpoint of this step, or start a background save."""

    def poll(self, *, blocking: bool) -> Sequence[SaveResult]:
        """Finalize background saves that are ready (`blocking`: wait for all of them)."""

    def wait(self) -> Sequence[SaveResult]:
        """Wait for the background save in flight, and return it.

        Called before each save if `may_wait`, so that its event precedes the next save, which may raise.
        """
        return ()

    def retry_due(self, *, blocking: bool) -> bool:
        """Return whether the loop is to repeat a failed save now. Called once after each poll, with its `blocking`.

        After a repetition at the end of the run (`blocking`) one more blocking poll follows, which may raise.
        """
        return False


CHECKPOINTER = "checkpointer"
"""Key of the checkpointer in a checkpointing context."""


def checkpointer_of(context: object, checkpointer: Checkpointer | None) -> Checkpointer | None:
    """Return the checkpointer, passed as an argument or in a checkpointing context; None if there is none.

    Raises:
        TrainSettingsError: the context is not a mapping, or both are passed and differ.
    """
    if context is None:
        return checkpointer
    if not isinstance(context, Mapping):
        raise TrainSettingsError(
            f"checkpointing_context: is a {type(context).__name__}, but the checkpointer is read from a mapping, under "
            f"{CHECKPOINTER!r}. Pass {{{CHECKPOINTER!r}: ...}}, or the keyword argument checkpointer."
        )
    from_context: Checkpointer | None = context.get(CHECKPOINTER)
    if checkpointer is not None and from_context not in (None, checkpointer):
        raise TrainSettingsError(
            f"checkpointing_context[{CHECKPOINTER!r}]: differs from the argument checkpointer, and one of them would "
            "never be called. Pass one."
        )
    return from_context if checkpointer is None else checkpointer


def require_checkpointer(settings: CheckpointSettings, checkpointer: Checkpointer | None) -> None:
    """Check that a run which is to be saved has a checkpointer and an interval, so that no steps are lost in silence.

    Raises:
        TrainSettingsError: `checkpoint.save` is set and there is none, or it lacks a method; `checkpoint.save_interval`
            is not resolved.
    """
    missing = [
        name for name in ("save", "poll", "may_wait", "wait", "retry_due") if not hasattr(checkpointer, name)
    ]
    if checkpointer is not None and missing:
        raise TrainSettingsError(
            f"checkpointer: {type(checkpointer).__name__} has no {', '.join(missing)}, which the loop calls. Pass a "
            "subclass of mb_loop.Checkpointer with save(step, non_persistent=) and poll(blocking=), which return a "
            "list of the saves that have ended (mb_loop.SaveResult)."
        )
    if settings.save_interval == "auto":
        raise TrainSettingsError(
            "checkpoint.save_interval: is 'auto', but the loop knows neither the time of a step nor of a save. "
            "Resolve the configuration, or set a number of steps."
        )
    if checkpointer is None and settings.save is not None:
        raise no_checkpointer(f"checkpoint.save={settings.save!r} requires one")


def no_checkpointer(reason: str) -> TrainSettingsError:
    """Return the error for a missing checkpointer."""
    return TrainSettingsError(
        f"checkpointer: there is none, but {reason}. Pass an object with the methods of mb_loop.Checkpointer as "
        "checkpointer=... or checkpointing_context={'checkpointer': ...}, or set checkpoint.save=None."
    )


class CheckpointSaver:
    """Checkpoint schedule of one run.

    Args:
        checkpointer: writes checkpoints; None: nothing is saved.
        settings: intervals, in steps.
        hooks: disabled during each save, so that all parameters are gathered.
        events: receives `on_checkpoint_start` and `on_checkpoint_end` around work that holds the loop, then
            `on_checkpoint_save` for each complete checkpoint, `on_checkpoint_failed` for each failed save and
            `on_checkpoint_scheduled` for a save that continues in the background.
        start_step: step at which this run starts, and which needs no save. None: it needs one, because it is that of a
            non-persistent checkpoint.
    """

    def __init__(
        self,
        checkpointer: Checkpointer | None,
        *,
        settings: CheckpointSettings,
        hooks: ForwardPreHooks,
        events: EventDispatcher,
        start_step: int | None,
    ) -> None:
        self._checkpointer = checkpointer
        self._settings = settings
        self._hooks = hooks
        self._events = events
        self._start_step = start_step
        self._begun: int | None = None
        self._written: int | None = None

    def saved(self, step: int) -> bool:
        """Return whether this run wrote a complete persistent checkpoint of the step."""
        return self._written == step

    def poll(self, *, blocking: bool = False) -> None:
        """Finalize background saves that are ready (`blocking`: wait for all of them), and repeat a failed one if due.

        A repetition saves the current step, whose counters are read from the events' state.
        """
        if self._checkpointer is None:
            return
        if blocking or self._checkpointer.may_wait:
            self._finalize(self._checkpointer, blocking=blocking)
        elif ended := self._checkpointer.poll(blocking=False):
            self._on_saved(ended)
        if self._checkpointer.retry_due(blocking=blocking):
            self.save_now(self._events.state.train_state.step, non_persistent=False)
            if blocking:
                self._finalize(self._checkpointer, blocking=True)

    def save(self, step: int, *, again: bool = False) -> None:
        """Write a persistent checkpoint, unless a save of this step was already started; with `again` also then.

        Failed saves are repeated by `poll`.
        """
        if again or self._begun != step:
            self.save_now(step, non_persistent=False)

    def after_step(self, step: int, *, leaving: bool) -> None:
        """Save if due after `step`. Persistent saves take precedence; leaving always writes a persistent checkpoint."""
        persistent, local = self._settings.save_interval, self._settings.non_persistent_save_interval
        if leaving or (isinstance(persistent, int) and persistent and step % persistent == 0):
            self.save(step)
        elif local and step % local == 0:
            self.save_now(step, non_persistent=True)

    def finish(self, step: int) -> None:
        """Save the last step, unless saving is disabled (interval 0) or it is that of the start and needs no save."""
        if self._settings.save_interval != 0 and step != self._start_step:
            self.save(step)

    def save_now(self, step: int, *, non_persistent: bool) -> None:
        """Write a checkpoint regardless of previous saves."""
        if self._checkpointer is None:
            return
        if not non_persistent:
            self._begun = step
        # Apart from the save, so that this time is reported as a wait for the previous one, whose event comes first.
        if self._checkpointer.may_wait:
            with self._holding("finalize"):
                ended = self._checkpointer.wait()
            self._on_saved(ended)
        with self._holding("save"), self._hooks.paused():
            ended = self._checkpointer.save(step, non_persistent=non_persistent)
        self._on_saved(ended)
        if not any(save.step == step and save.non_persistent == non_persistent for save in ended):
            scheduled = SaveResult(step=step, non_persistent=non_persistent, written=False)
            self._events("on_checkpoint_scheduled", save=scheduled)

    def _finalize(self, checkpointer: Checkpointer, *, blocking: bool) -> None:
        with self._holding("finalize"):
            ended = checkpointer.poll(blocking=blocking)
        self._on_saved(ended)

    @contextmanager
    def _holding(self, work: CheckpointWork) -> Iterator[None]:
        self._events("on_checkpoint_start", checkpoint_work=work)
        try:
            yield
        finally:
            self._events("on_checkpoint_end", checkpoint_work=work)

    def _on_saved(self, ended: Sequence[SaveResult]) -> None:
        for save in ended:
            if save.written and not save.non_persistent:
                self._written = save.step
            self._events("on_checkpoint_save" if save.written else "on_checkpoint_failed", save=save)
