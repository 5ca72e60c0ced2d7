"""Callbacks: events of a run and their listeners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, get_args

from mb_loop.errors import LoopError

if TYPE_CHECKING:
    from torch import Tensor

    from mb_loop.exits.outcome import TrainOutcome
    from mb_loop.step.result import StepResult
    from mb_schema.save_result import SaveResult

EventName = Literal[
    "on_data_init_start",
    "on_train_start",
    "on_train_step_start",
    "on_train_microbatch",
    "on_before_optimizer_step",
    "on_train_step_end",
    "on_train_step_skipped",
    "on_train_end",
    "on_eval_start",
    "on_eval_step_start",
    "on_eval_step_end",
    "on_eval_end",
    "on_test_start",
    "on_test_step_start",
    "on_test_step_end",
    "on_test_end",
    "on_checkpoint_start",
    "on_checkpoint_end",
    "on_checkpoint_scheduled",
    "on_checkpoint_save",
    "on_checkpoint_failed",
]
CheckpointWork = Literal["save", "finalize"]
"""Checkpoint work that holds the loop: a save (or its retry), or a wait for background saves."""
EVENTS: tuple[EventName, ...] = get_args(EventName)


class UnknownEventError(LoopError, ValueError):
    """An event name is unknown, or a callback handles no event."""

    internal = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackContext:
    """Argument of a callback. Fields that do not belong to the event are None.

    `loss_dict`, `grad_norm` and `skipped_iter` are fields of `result`, under Megatron-Bridge's names.
    """

    state: Any
    """Global state. At the end of a step, the counters in `state.train_state` are already advanced."""

    model: Sequence[Any]
    """Model chunks of this rank."""

    user_state: dict[str, Any] = field(default_factory=dict)
    """Dict that all callbacks of a manager share and may write to."""

    optimizer: Any = None
    """Optimizer, in training events."""

    scheduler: Any = None
    """Scheduler, in training events."""

    loss_dict: Mapping[str, Tensor] | None = None
    """Losses of the step as device tensors (on_train_step_end). Empty on all but the last pipeline stage."""

    grad_norm: float | Tensor | None = None
    """Gradient norm of the step (on_train_step_end)."""

    skipped_iter: bool | None = None
    """Whether the optimizer skipped the step (on_train_step_end)."""

    total_loss_dict: Mapping[str, float] | None = None
    """Losses of a complete evaluation (on_eval_end, on_test_end)."""

    microbatch: Any = None
    """Microbatch as the data iterator returned it (on_train_microbatch)."""

    chunk: int | None = None
    """Number of the model chunk that reads it (on_train_microbatch)."""

    result: StepResult | None = None
    """Complete result of the step (on_train_step_end)."""

    outcome: TrainOutcome | None = None
    """Result of training (on_train_end); None if training ends with an exception."""

    saved_step: int | None = None
    """Step of the checkpoint (on_checkpoint_save). A previous step if the checkpoint was written in the background."""

    save: SaveResult | None = None
    """Result of the save (on_checkpoint_save, on_checkpoint_failed), or the save that continues in the background
    (on_checkpoint_scheduled)."""

    checkpoint_work: CheckpointWork | None = None
    """Work that holds the loop (on_checkpoint_start, on_checkpoint_end)."""


Listener = Callable[[CallbackContext], None]


class Callback:
    """Base class of callbacks. Override the events to handle; events that are not overridden have no cost."""

    def stop_requested(self, step: int) -> str | None:
        """Return the reason to end training after this step, which is then complete; None to continue.

        Called after each step, and before the first one of a resumed run. It must return the same on all ranks.
        """
        return None

    def on_data_init_start(self, context: CallbackContext) -> None:
        """Called before the data is built; there is no model yet. Fired by a trainer, not by the loop."""

    def on_train_start(self, context: CallbackContext) -> None:
        """Called before the first iteration."""

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Called before a step, except for steps of `iterations_to_skip`."""

    def on_train_microbatch(self, context: CallbackContext) -> None:
        """Called for each microbatch that is read from the training data, also of skipped steps, on ranks that read it.

        It is what was read, before it is copied to the device or split over ranks, and once if the step is repeated.
        Unlike a hook of the model, it is called in each step if CUDA graphs are replayed.
        """

    def on_before_optimizer_step(self, context: CallbackContext) -> None:
        """Called before the optimizer step: gradients are reduced over ranks, but neither unscaled nor clipped.

        The counters of the state are those of the previous step. Not called for a step that the rerun machine rejects.
        """

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Called after a step, once its samples are counted."""

    def on_train_step_skipped(self, context: CallbackContext) -> None:
        """Called after a step of `iterations_to_skip`, whose data was read and discarded."""

    def on_train_end(self, context: CallbackContext) -> None:
        """Called on every exit from training, including exceptions."""

    def on_eval_start(self, context: CallbackContext) -> None:
        """Called before a validation."""

    def on_eval_step_start(self, context: CallbackContext) -> None:
        """Called before each global batch of a validation."""

    def on_eval_step_end(self, context: CallbackContext) -> None:
        """Called after each global batch of a validation."""

    def on_eval_end(self, context: CallbackContext) -> None:
        """Called after a validation that ended without an exception."""

    def on_test_start(self, context: CallbackContext) -> None:
        """Called before a test."""

    def on_test_step_start(self, context: CallbackContext) -> None:
        """Called before each global batch of a test."""

    def on_test_step_end(self, context: CallbackContext) -> None:
        """Called after each global batch of a test."""

    def on_test_end(self, context: CallbackContext) -> None:
        """Called after a test that ended without an exception."""

    def on_checkpoint_start(self, context: CallbackContext) -> None:
        """Called before checkpoint work that holds the loop: a save, or a poll that may wait for background saves."""

    def on_checkpoint_end(self, context: CallbackContext) -> None:
        """Called when that work returns control to the loop, also by an exception. Always follows its start."""

    def on_checkpoint_scheduled(self, context: CallbackContext) -> None:
        """Called after the start of a save that continues in the background; `context.save` is not complete yet."""

    def on_checkpoint_save(self, context: CallbackContext) -> None:
        """Called once a checkpoint is complete: after the save, or when a background save is finalized."""

    def on_checkpoint_failed(self, context: CallbackContext) -> None:
        """Called once a save has failed and training continues; the checkpointer decides when to retry it."""


class CallbackManager:
    """Registry of event listeners, called in the order of registration. Exceptions of listeners propagate.

    Args:
        callbacks: callbacks to add, in order.
    """

    def __init__(self, callbacks: Iterable[object] = ()) -> None:
        self.user_state: dict[str, Any] = {}
        self._listeners: dict[EventName, list[Listener]] = {event: [] for event in EVENTS}
        self._stop_sources: list[Callable[[int], str | None]] = []
        for callback in callbacks:
            self.add(callback)

    def add(self, callback: object) -> None:
        """Register the methods for events that the class of `callback` defines or overrides; of a list, of each.

        Raises:
            UnknownEventError: the object is not a `Callback` and handles no event, or the name of a method resembles
                that of an event.
        """
        if isinstance(callback, list | tuple):
            for item in callback:
                self.add(item)
            return
        handled = [
            event
            for event in EVENTS
            if getattr(type(callback), event, None) not in (None, getattr(Callback, event))
        ]
        _reject_misspelled(callback)
        if not handled and not isinstance(callback, Callback):
            if isinstance(callback, type):
                problem = f"{callback.__name__} is a class, not an object"
            else:
                problem = f"{type(callback).__name__} handles no event"
            raise UnknownEventError(
                f"callbacks: {problem}, so it would never be called. Define one of {', '.join(EVENTS)}."
            )
        for event in handled:
            self._listeners[event].append(getattr(callback, event))
        if isinstance(callback, Callback) and type(callback).stop_requested is not Callback.stop_requested:
            self._stop_sources.append(callback.stop_requested)

    def register(self, event: EventName, listener: Listener) -> None:
        """Register a function for one event.

        Raises:
            UnknownEventError: there is no such event.
        """
        self._of_event(event).append(listener)

    def stop_requested(self, step: int) -> str | None:
        """Return the reason of the first callback that ends training after this step, or None."""
        reasons = (source(step) for source in self._stop_sources)
        return next((reason for reason in reasons if reason is not None), None)

    @property
    def events(self) -> frozenset[EventName]:
        """Names of all events."""
        return frozenset(EVENTS)

    def list_callbacks(self, event: EventName) -> list[Listener]:
        """Return the listeners of an event in their order; raises as `register`."""
        return [*self._of_event(event)]

    def has_callbacks(self, event: EventName) -> bool:
        """Return whether an event has listeners; raises as `register`."""
        return bool(self._of_event(event))

    def fire(self, event: EventName, context: CallbackContext) -> None:
        """Call every listener of an event; raises as `register`."""
        for listener in self._of_event(event):
            listener(context)

    def _of_event(self, event: EventName) -> list[Listener]:
        if event not in self._listeners:
            raise UnknownEventError(
                f"callbacks: there is no event {event!r}, so it would never be called. Use one of {', '.join(EVENTS)}."
            )
        return self._listeners[event]


_SIMILARITY = 0.9  # separates a misspelled event from an event of another library, such as on_train_epoch_end


def _reject_misspelled(callback: object) -> None:
    unknown = [name for name in dir(type(callback)) if name.startswith("on_") and name not in EVENTS]
    for name in unknown:
        if close := get_close_matches(name, EVENTS, n=1, cutoff=_SIMILARITY):
            raise UnknownEventError(
                f"callbacks: {type(callback).__name__}.{name}: there is no such event, so it would never be called. "
                f"Did you mean {close[0]}?"
            )


def normalize_callbacks(
    callbacks: Iterable[object] | CallbackManager | object | None,
) -> CallbackManager | None:
    """Return a manager of callbacks, or of a single one; a manager unchanged, and None for None."""
    if callbacks is None or isinstance(callbacks, CallbackManager):
        return callbacks
    return CallbackManager(callbacks if isinstance(callbacks, Iterable) else [callbacks])


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDispatcher:
    """Callback manager with the context fields that are constant over a run."""

    manager: CallbackManager
    state: Any
    model: Sequence[Any]
    optimizer: Any = None
    scheduler: Any = None

    def __call__(
        self,
        event: EventName,
        *,
        result: StepResult | None = None,
        outcome: TrainOutcome | None = None,
        total_loss_dict: Mapping[str, float] | None = None,
        save: SaveResult | None = None,
        checkpoint_work: CheckpointWork | None = None,
        microbatch: Any = None,
        chunk: int | None = None,
    ) -> None:
        """Fire an event. Builds no context if the event has no listeners."""
        if not self.manager.has_callbacks(event):
            return
        context = CallbackContext(
            state=self.state,
            model=self.model,
            user_state=self.manager.user_state,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            loss_dict=None if result is None else result.losses,
            grad_norm=None if result is None else result.grad_norm,
            skipped_iter=None if result is None else result.skipped,
            total_loss_dict=total_loss_dict,
            result=result,
            outcome=outcome,
            saved_step=None if save is None else save.step,
            save=save,
            checkpoint_work=checkpoint_work,
            microbatch=microbatch,
            chunk=chunk,
        )
        self.manager.fire(event, context)
