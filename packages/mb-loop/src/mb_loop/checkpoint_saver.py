"""When to save, and never the same step twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mb_loop.callbacks import EventDispatcher
from mb_loop.errors import TrainSettingsError
from mb_loop.hooks import ForwardPreHooks
from mb_loop.settings import CheckpointSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveResult:
    """How a save ended."""

    step: int
    """The step that was to be saved."""
    non_persistent: bool
    """Whether the checkpoint is one that the next temporary one replaces."""
    written: bool
    """Whether the checkpoint is whole; False: it came to nothing, and the run goes on."""


class Checkpointer(Protocol):
    """Who writes checkpoints. Both methods are called on all ranks, after the same step.

    Both return the saves that have ended since the last call, alike on all ranks: of `save` that is the save itself,
    unless a background writer has it, and one of before that it waited for.
    """

    def save(self, step: int, *, non_persistent: bool) -> Sequence[SaveResult]:
        """Write a checkpoint of this step, or hand it to a background writer."""

    def poll(self, *, blocking: bool) -> Sequence[SaveResult]:
        """Finish background writes that are ready (blocking: all of them)."""


CHECKPOINTER = "checkpointer"
"""Key of a checkpointing context that holds the checkpointer."""


def checkpointer_of(context: object, checkpointer: Checkpointer | None) -> Checkpointer | None:
    """Return the checkpointer that was passed, by name or in a checkpointing context; None: there is none.

    Raises:
        TrainSettingsError: the context is not a mapping, or both are given and differ.
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
    """The save decisions of one run.

    Args:
        checkpointer: None: nothing is ever saved.
        settings: intervals, in steps.
        hooks: switched off around each save, so that the parameters are whole.
        events: hears `on_checkpoint_save` of each checkpoint that is whole.
        start_step: the step that this run starts from, which needs no save of its own.
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
        """Say whether this run wrote a lasting checkpoint of the step, and it is whole."""
        return self._written == step

    def poll(self, *, blocking: bool = False) -> None:
        """Look after background writes."""
        if self._checkpointer is not None:
            self._on_saved(self._checkpointer.poll(blocking=blocking))

    def save(self, step: int, *, again: bool = False) -> None:
        """Write a lasting checkpoint, unless one of this step was begun before; `again`: also then, in its place.

        One that failed is the checkpointer's to try again.
        """
        if again or self._begun != step:
            self.save_now(step, non_persistent=False)

    def after_step(self, step: int, *, leaving: bool) -> None:
        """Save what is due after a step. A lasting save wins over a temporary one; leaving needs a lasting one."""
        if leaving or _divides(self._settings.save_interval, step):
            self.save(step)
        elif _divides(self._settings.non_persistent_save_interval, step):
            self.save_now(step, non_persistent=True)

    def finish(self, step: int) -> None:
        """Save the last step, unless saving is off (interval 0) or no step was made."""
        if self._settings.save_interval != 0 and step != self._start_step:
            self.save(step)

    def save_now(self, step: int, *, non_persistent: bool) -> None:
        """Write a checkpoint whatever was written before."""
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
