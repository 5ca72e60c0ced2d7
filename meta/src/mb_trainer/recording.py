"""Recording callbacks: metrics of each step, events, the progress bar."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from mb_loop import Callback, CallbackContext
from mb_trainer.console import Bar
from mb_trainer.measuring import Measured
from mb_trainer.run_folder import EventLog


class MetricsRecorder(Callback):
    """Callback that passes each step and evaluation to the metrics; values stay on the device until they are needed."""

    def __init__(
        self,
        measured: Measured,
        *,
        decoupled_rate: bool = False,
        extra: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._measured = measured
        self._metrics = measured.metrics
        self._decoupled_rate = decoupled_rate
        self._extra = extra
        self._pause = ExitStack()
        self._gradient_norms: Mapping[str, Any] = {}

    def on_before_optimizer_step(self, context: CallbackContext) -> None:
        """Compute the gradient norms, because the optimizer unscales and clips the gradients in place."""
        step = context.state.train_state.step + 1
        loss_scale = context.optimizer.get_loss_scale()
        self._gradient_norms = self._measured.gradient_norms(step, loss_scale=loss_scale)

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Record the losses, the learning rate, the gradient norm and the consumed samples and tokens."""
        result = context.result
        if result is None:
            return
        counters = context.state.train_state
        more: dict[str, Any] = {"loss-scale": context.optimizer.get_loss_scale()}
        if self._decoupled_rate:
            more["decoupled-learning-rate"] = result.decoupled_learning_rate
        if counters.skipped_train_samples:
            more["skipped-train-samples"] = counters.skipped_train_samples
        self._metrics.record(
            result.step,
            {
                **result.losses,
                "learning-rate": result.learning_rate,
                "grad-norm": result.grad_norm,
                "num-zeros": result.num_zeros_in_grad,
                "max-attention-logit": result.max_attention_logit,
                **more,
                **self._gradient_norms,
                **self._measured.at_interval(result.step, samples=result.samples),
                **self._extra(),
            },
            samples=result.samples,
            tokens=self._measured.tokens(result),
            skipped=result.skipped,
            consumed_samples=counters.consumed_train_samples,
        )

    def on_eval_start(self, context: CallbackContext) -> None:
        """Stop the step clock."""
        self._pause.enter_context(self._measured.pause())

    def on_eval_end(self, context: CallbackContext) -> None:
        """Record the losses of the evaluation, and restart the step clock.

        A rank without losses, as of an early stage, participates because metrics may be reduced over all ranks.
        """
        if context.total_loss_dict is not None:
            self._metrics.evaluation(context.state.train_state.step, context.total_loss_dict)
        self._pause.close()


class EventRecorder(Callback):
    """Dropped problem -> rules whose problems imply it, or that would reject what it advises.

    A context manager: the stop is written on exit, so that it follows an evaluation after training. Saves are written
    by the checkpointer, which knows their outcome.
    """

    def __init__(self, events: EventLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._clock = clock
        self._evaluation_start: float | None = None
        self._stop: dict[str, Any] | None = None
        self._step: int | None = None

    def __enter__(self) -> "EventRecorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write how the run ended, if it has started; a propagating exception counts as a failure."""
        if self._stop is not None:
            self._events.write("stop", **{**self._stop, **({} if error is None else {"reason": "failed"})})
        elif error is not None and self._step is not None:
            self._events.write("stop", step=self._step, reason="failed")

    def on_train_start(self, context: CallbackContext) -> None:
        """Store the step at which training starts."""
        self._step = context.state.train_state.step

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Store the step, for a stop by an exception."""
        self._step = context.state.train_state.step

    def on_eval_start(self, context: CallbackContext) -> None:
        """Store the start time of the evaluation."""
        self._evaluation_start = self._clock()

    def on_eval_end(self, context: CallbackContext) -> None:
        """Write the losses of an evaluation."""
        start = self._evaluation_start
        seconds = {} if start is None else {"seconds": self._clock() - start}
        losses = dict(context.total_loss_dict or {})
        self._events.write("evaluation", step=context.state.train_state.step, losses=losses, **seconds)

    def on_train_end(self, context: CallbackContext) -> None:
        """Store the step and the reason of the end of training."""
        reason = context.outcome.reason if context.outcome else "failed"
        self._stop = {"step": context.state.train_state.step, "reason": reason}


class ProgressBar(Callback):
    """Callback that advances a progress bar after each step."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Advance to the finished step."""
        self._bar.update(context.state.train_state.step)
