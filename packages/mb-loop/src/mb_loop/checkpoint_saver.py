"""Checkpoint schedule: saves that are due, at most once per step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mb_loop.callbacks import EventDispatcher
from mb_loop.errors import TrainSettingsError
from mb_loop.hooks import ForwardPreHooks
from mb_loop.settings import CheckpointSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveResult:
    """Result of a save."""

    step: int
    """Step of the checkpoint."""
    non_persistent: bool
    """Whether the checkpoint is non-persistent: the next non-persistent one replaces it."""
    written: bool
    """Whether the checkpoint is complete; False: the save failed, and the run continues."""


class Checkpointer(Protocol):
    """Writer of checkpoints. Both methods are called on all ranks, after the same step.

    Both return the saves that have ended since the last call, identical on all ranks. For `save` these are the save
    itself, unless it continues in the background, and a previous save that it waited for.
    """

    def save(self, step: int, *, non_persistent: bool) -> Sequence[SaveResult]:
        """Write a checkpoint of this step, or start a background save."""

    def poll(self, *, blocking: bool) -> Sequence[SaveResult]:
        """Finalize background saves that are ready (`blocking`: wait for all of them)."""


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
    found: Checkpointer | None = context.get(CHECKPOINTER)
    if checkpointer is not None and found not in (None, checkpointer):
        raise TrainSettingsError(
            f"checkpointing_context[{CHECKPOINTER!r}]: differs from the argument checkpointer, and one of them would "
            "never be called. Pass one."
        )
    return found if checkpointer is None else checkpointer


class CheckpointSaver:
    """Checkpoint schedule of one run.

    Args:
        checkpointer: writes checkpoints; None: nothing is saved.
        settings: intervals, in steps.
        hooks: disabled during each save, so that all parameters are gathered.
        events: receives `on_checkpoint_save` for each complete checkpoint.
        start_step: step at which this run starts; it needs no save.
    """

    def __init__(
        self,
        checkpointer: Checkpointer | None,
        *,
        settings: CheckpointSettings,
        hooks: ForwardPreHooks,
        events: EventDispatcher,
        start_step: int,
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
        """Finalize background saves that are ready (`blocking`: wait for all of them)."""
        if self._checkpointer is not None:
            self._on_saved(self._checkpointer.poll(blocking=blocking))

    def save(self, step: int, *, again: bool = False) -> None:
        """Write a persistent checkpoint, unless a save of this step was already started; with `again` also then.

        The checkpointer is responsible for retries of a failed save.
        """
        if again or self._begun != step:
            self.save_now(step, non_persistent=False)

    def after_step(self, step: int, *, leaving: bool) -> None:
        """Save if due after `step`. Persistent saves take precedence; leaving always writes a persistent checkpoint."""
        if leaving or _divides(self._settings.save_interval, step):
            self.save(step)
        elif _divides(self._settings.non_persistent_save_interval, step):
            self.save_now(step, non_persistent=True)

    def finish(self, step: int) -> None:
        """Save the last step, unless saving is disabled (interval 0) or no step was made."""
        if self._settings.save_interval != 0 and step != self._start_step:
            self.save(step)

    def save_now(self, step: int, *, non_persistent: bool) -> None:
        """Write a checkpoint regardless of previous saves."""
        if self._checkpointer is None:
            return
        if not non_persistent:
            self._begun = step
        with self._hooks.paused():
            ended = self._checkpointer.save(step, non_persistent=non_persistent)
        self._on_saved(ended)

    def _on_saved(self, ended: Sequence[SaveResult]) -> None:
        for save in ended:
            if not save.written:
                continue
            if not save.non_persistent:
                self._written = save.step
            self._events("on_checkpoint_save", saved_step=save.step)


def _divides(interval: int | None, step: int) -> bool:
    return bool(interval) and step % interval == 0  # type: ignore[operator]
