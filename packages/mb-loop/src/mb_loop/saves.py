"""When to save, and never the same step twice."""

from typing import Protocol

from mb_loop.callbacks import Events
from mb_loop.hooks import ForwardPreHooks
from mb_loop.settings import CheckpointSettings


class Checkpointer(Protocol):
    """Who writes checkpoints. Both methods are called on all ranks, after the same step."""

    def save(self, step: int, *, temporary: bool) -> None:
        """Write a checkpoint of this step, or hand it to a background writer."""

    def poll(self, *, blocking: bool) -> None:
        """Finish background writes that are ready (blocking: all of them), and raise what went wrong in one."""


class Saver:
    """The save decisions of one run.

    Args:
        checkpointer: None: nothing is ever saved.
        settings: intervals, in steps.
        hooks: switched off around each save, so that the parameters are whole.
        events: hears `on_checkpoint_save`.
        start_step: the step that this run starts from, which needs no save of its own.
    """

    def __init__(
        self,
        checkpointer: Checkpointer | None,
        *,
        settings: CheckpointSettings,
        hooks: ForwardPreHooks,
        events: Events,
        start_step: int,
    ) -> None:
        self._checkpointer = checkpointer
        self._settings = settings
        self._hooks = hooks
        self._events = events
        self._start_step = start_step
        self._lasting: int | None = None

    def saved(self, step: int) -> bool:
        """Say whether this run wrote a lasting checkpoint of the step."""
        return self._lasting == step

    def poll(self, *, blocking: bool = False) -> None:
        """Look after background writes."""
        if self._checkpointer is not None:
            self._checkpointer.poll(blocking=blocking)

    def save(self, step: int, *, again: bool = False) -> None:
        """Write a lasting checkpoint, unless there is one of this step already; `again`: also then, in its place."""
        if again or not self.saved(step):
            self.save_now(step, temporary=False)

    def after_step(self, step: int, *, leaving: bool) -> None:
        """Save what is due after a step. A lasting save wins over a temporary one; leaving needs a lasting one."""
        if leaving or _divides(self._settings.save_interval, step):
            self.save(step)
        elif _divides(self._settings.non_persistent_save_interval, step):
            self.save_now(step, temporary=True)

    def finish(self, step: int) -> None:
        """Save the last step, unless saving is off (interval 0) or no step was made."""
        if self._settings.save_interval != 0 and step != self._start_step:
            self.save(step)

    def save_now(self, step: int, *, temporary: bool) -> None:
        """Write a checkpoint whatever was written before."""
        if self._checkpointer is None:
            return
        with self._hooks.paused():
            self._checkpointer.save(step, temporary=temporary)
        if not temporary:
            self._lasting = step
        self._events("on_checkpoint_save")


def _divides(interval: int | None, step: int) -> bool:
    return bool(interval) and step % interval == 0  # type: ignore[operator]
