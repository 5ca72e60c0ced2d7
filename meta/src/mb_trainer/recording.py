"""Callbacks that write down what happens: metrics of each step, events, the progress bar."""

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
    """Hands each step and evaluation to the metrics; values stay on the device until they want them."""

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
        """Measure the gradients, which the optimizer unscales and clips in place."""
        step = context.state.train_state.step + 1
        loss_scale = context.optimizer.get_loss_scale()
        self._gradient_norms = self._measured.gradient_norms(step, loss_scale=loss_scale)

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Record the losses, the learning rate, the gradient norm and what was consumed."""
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
        """Record the losses of the evaluation, and let the step clock run again.

        A rank without losses, as of an early stage, takes part: metrics may be reduced over all ranks.
        """
        if context.total_loss_dict is not None:
            self._metrics.evaluation(context.state.train_state.step, context.total_loss_dict)
        self._pause.close()


class EventRecorder(Callback):
    """Appends validations, with the seconds that they took, and at the end the stop to events.jsonl.

    A context: the stop is written when it ends, so that it comes behind a validation after training. Saves are written
    by whoever knows how they ended.
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
        """Write how the run ended, if it has begun; an exception on its way out is a failure."""
        if self._stop is not None:
            self._events.write("stop", **{**self._stop, **({} if error is None else {"reason": "failed"})})
        elif error is not None and self._step is not None:
            self._events.write("stop", step=self._step, reason="failed")

    def on_train_start(self, context: CallbackContext) -> None:
        """Note the step at which training begins."""
        self._step = context.state.train_state.step

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Note the step, for a stop by an exception."""
        self._step = context.state.train_state.step

    def on_eval_start(self, context: CallbackContext) -> None:
        """Look at the clock."""
        self._evaluation_start = self._clock()

    def on_eval_end(self, context: CallbackContext) -> None:
        """Write the losses of an evaluation."""
        start = self._evaluation_start
        seconds = {} if start is None else {"seconds": self._clock() - start}
        losses = dict(context.total_loss_dict or {})
        self._events.write("evaluation", step=context.state.train_state.step, losses=losses, **seconds)

    def on_train_end(self, context: CallbackContext) -> None:
        """Note where and why training ended."""
        reason = context.outcome.reason if context.outcome else "failed"
        self._stop = {"step": context.state.train_state.step, "reason": reason}


class ProgressBar(Callback):
    """Moves a bar forward after each step."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Move to the step that was done."""
        self._bar.update(context.state.train_state.step)
