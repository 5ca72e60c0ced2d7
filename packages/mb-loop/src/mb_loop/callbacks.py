"""Events of a run, and who hears them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

    from mb_loop.outcome import TrainOutcome
    from mb_loop.result import StepResult

EventName = Literal[
    "on_data_init_start",
    "on_train_start",
    "on_train_step_start",
    "on_before_optimizer_step",
    "on_train_step_end",
    "on_train_end",
    "on_eval_start",
    "on_eval_step_start",
    "on_eval_step_end",
    "on_eval_end",
    "on_test_start",
    "on_test_step_start",
    "on_test_step_end",
    "on_test_end",
    "on_checkpoint_save",
]
EVENTS: tuple[EventName, ...] = get_args(EventName)


class UnknownEventError(ValueError):
    """There is no event of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackContext:
    """What a callback is handed. Fields that do not belong to the event are None."""

    state: Any
    """The global state: `state.train_state` has the counters, already advanced when a step ends."""

    model: Sequence[Any]
    """Model chunks of this rank."""

    user_state: dict[str, Any] = field(default_factory=dict)
    """One dict that all callbacks of a manager share and may write to."""

    optimizer: Any = None
    """The optimizer, in training events."""

    scheduler: Any = None
    """The scheduler, in training events."""

    loss_dict: Mapping[str, Tensor] | None = None
    """Losses of the step as device tensors (on_train_step_end); empty except on the last pipeline stage."""

    grad_norm: float | Tensor | None = None
    """Gradient norm of the step (on_train_step_end)."""

    skipped_iter: bool | None = None
    """Whether the optimizer refused the step (on_train_step_end)."""

    total_loss_dict: Mapping[str, float] | None = None
    """Losses of a whole evaluation (on_eval_end, on_test_end)."""

    result: StepResult | None = None
    """The whole record of the step (on_train_step_end)."""

    outcome: TrainOutcome | None = None
    """How training ended (on_train_end); None when an exception is on its way out."""

    saved_step: int | None = None
    """The step of the checkpoint (on_checkpoint_save): one of before where it was written in the background."""


Listener = Callable[[CallbackContext], None]


class Callback:
    """Base class: override the events that you want. Events that you leave alone cost nothing."""

    def on_data_init_start(self, context: CallbackContext) -> None:
        """Before the data is built, when there is no model yet (fired by a trainer, not by the loop)."""

    def on_train_start(self, context: CallbackContext) -> None:
        """Before the first turn of the loop."""

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Before a step. Not for steps of the skip list."""

    def on_before_optimizer_step(self, context: CallbackContext) -> None:
        """Before the optimizer step: gradients are reduced over ranks, neither unscaled nor clipped.

        The counters of the state are those of the previous step. Not for a step that the rerun machine rejects.
        """

    def on_train_step_end(self, context: CallbackContext) -> None:
        """After a step, when its samples are counted."""

    def on_train_end(self, context: CallbackContext) -> None:
        """On every way out of training, exceptions included."""

    def on_eval_start(self, context: CallbackContext) -> None:
        """Before a validation."""

    def on_eval_step_start(self, context: CallbackContext) -> None:
        """Before a global batch of a validation."""

    def on_eval_step_end(self, context: CallbackContext) -> None:
        """After a global batch of a validation."""

    def on_eval_end(self, context: CallbackContext) -> None:
        """After a validation that went through."""

    def on_test_start(self, context: CallbackContext) -> None:
        """Before a test."""

    def on_test_step_start(self, context: CallbackContext) -> None:
        """Before a global batch of a test."""

    def on_test_step_end(self, context: CallbackContext) -> None:
        """After a global batch of a test."""

    def on_test_end(self, context: CallbackContext) -> None:
        """After a test that went through."""

    def on_checkpoint_save(self, context: CallbackContext) -> None:
        """When a checkpoint is whole: after the save, or as soon as a background writer is found to be done."""


class CallbackManager:
    """Who hears which event. Listeners are called in the order in which they were added; exceptions go through.

    Args:
        callbacks: added at once, in order.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.user_state: dict[str, Any] = {}
        self._listeners: dict[EventName, list[Listener]] = {event: [] for event in EVENTS}
        for callback in callbacks:
            self.add(callback)

    def add(self, callback: Callback) -> None:
        """Register each event that the callback's class has, other than as `Callback` has it.

        Raises:
            UnknownEventError: it is no `Callback`, and has none of the events.
        """
        handled = [
            event
            for event in EVENTS
            if getattr(type(callback), event, None) not in (None, getattr(Callback, event))
        ]
        if not handled and not isinstance(callback, Callback):
            raise UnknownEventError(
                f"callbacks: {type(callback).__name__} has none of the events, so it would never be called. "
                f"Give its class one of {', '.join(EVENTS)}."
            )
        for event in handled:
            self._listeners[event].append(getattr(callback, event))

    def register(self, event: EventName, listener: Listener) -> None:
        """Register a plain function for one event.

        Raises:
            UnknownEventError: there is no such event.
        """
        if event not in self._listeners:
            raise UnknownEventError(
                f"callbacks: there is no event {event!r}, so it would never be called. Use one of {', '.join(EVENTS)}."
            )
        self._listeners[event].append(listener)

    def has_listeners(self, event: EventName) -> bool:
        """Say whether anybody hears the event."""
        return bool(self._listeners[event])

    def fire(self, event: EventName, context: CallbackContext) -> None:
        """Call every listener of the event."""
        for listener in self._listeners[event]:
            listener(context)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDispatcher:
    """A manager together with what every context of one run holds."""

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
        saved_step: int | None = None,
    ) -> None:
        """Fire an event; builds no context when nobody hears it."""
        if not self.manager.has_listeners(event):
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
            saved_step=saved_step,
        )
        self.manager.fire(event, context)
