"""Callback that records the steps, evaluations and checkpoints of a training loop. Does not import torch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from mb_metrics.names import (
    DECOUPLED_LEARNING_RATE,
    FAILED_SAVES,
    GRAD_NORM,
    LEARNING_RATE,
    LOSS_SCALE,
    MAX_ATTENTION_LOGIT,
    NUM_ZEROS,
    PARAMS_NORM,
    SKIPPED_SAMPLES,
)
from mb_metrics.recorder.metrics import Metrics
from mb_metrics.recorder.recorded_steps import Value
from mb_metrics.run.training_context import MetricsContext, TrainCounters, TrainingStep


class IntervalValues(Protocol):
    """Function that is called on all ranks at the end of each log interval."""

    def __call__(self, *, step: int, microbatches: int) -> Mapping[str, Value]:
        """Return metrics of the steps since the last call; `microbatches` of this rank."""


@runtime_checkable
class ScalingOptimizer(Protocol):
    """Optimizer that scales the loss, as Megatron's do; torch's have no loss scale."""

    def get_loss_scale(self) -> Value:
        """Return the factor by which the loss is multiplied."""


class Pausable(Protocol):
    """Measurement that excludes the time between `pause` and `resume`."""

    def pause(self) -> None:
        """Stop measuring."""

    def resume(self) -> None:
        """Continue measuring."""


class TrainingMetrics:
    """Callback that records a training loop in `Metrics`; `build_training_metrics` builds one from configuration.

    Every rank has one instance and fires the same events. Values stay on their device until the end of a log interval.

    * `on_before_optimizer_step` computes the gradient norms if a log interval ends with this step, because the
      optimizer unscales and clips the gradients in place.
    * `on_train_step_end` records losses, learning rate, loss scale, gradient norm, consumed samples and tokens.
    * Evaluations (`on_eval_start` to `on_eval_end`) and saves (`on_checkpoint_start` to `on_checkpoint_end`) do not
      count as training time. Before a save the metrics of all steps are flushed, because a resumed run starts after
      them.
    * `on_checkpoint_save` passes each persistent checkpoint to the sinks that store files, as
      "<folder of checkpoints>/iter_0000010". `on_checkpoint_failed` counts failed saves.

    A context manager: it starts the step clock, and closes the metrics on exit.

    Args:
        metrics: Recorder of the steps; with sinks on the one rank that writes.
        samples_per_microbatch: Sequences of one microbatch over all data-parallel ranks.
        flops_per_token: Floating-point operations per token, forward and backward; None: not known.
        gradient_norms: Returns the gradient norms for a loss scale; collective. None: they are not recorded.
        parameter_norm: Returns the norm of all parameters; collective. None: it is not recorded.
        interval_values: Functions that return metrics at the end of each log interval.
        step_values: Functions that return host metrics of each step.
        pausable: Measurements that exclude evaluations and saves.
        decoupled_rate: Record the learning rate of parameters with a separate schedule.
    """

    def __init__(  # noqa: PLR0913 - parts, each by name
        self,
        metrics: Metrics,
        *,
        samples_per_microbatch: int = 1,
        flops_per_token: float | None = None,
        gradient_norms: Callable[..., Mapping[str, Any]] | None = None,
        parameter_norm: Callable[[], float] | None = None,
        interval_values: Sequence[IntervalValues] = (),
        step_values: Sequence[Callable[[], Mapping[str, Value]]] = (),
        pausable: Sequence[Pausable] = (),
        decoupled_rate: bool = False,
    ) -> None:
        self.metrics = metrics
        self._log_interval = metrics.log_interval
        self._samples_per_microbatch = samples_per_microbatch
        self._flops_per_token = flops_per_token
        self._measure_gradients, self._parameter_norm = gradient_norms, parameter_norm
        self._interval_values, self._step_values = tuple(interval_values), tuple(step_values)
        self._pausable = tuple(pausable)
        self._decoupled_rate = decoupled_rate
        self._microbatches = 0
        self._failed_saves = 0
        self._gradient_norms: Mapping[str, Any] = {}
        self._evaluation_pause, self._save_pause = ExitStack(), ExitStack()

    def __enter__(self) -> "TrainingMetrics":
        self.metrics.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.metrics.__exit__(kind, error, traceback)

    def flops(self, result: TrainingStep) -> float:
        """Return the model's floating-point operations of a step over all ranks; 0 if they are not known."""
        return (self._flops_per_token or 0.0) * (result.tokens or 0)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time and the energy of this block from the step."""
        for measurement in self._pausable:
            measurement.pause()
        try:
            with self.metrics.pause():
                yield
        finally:
            for measurement in self._pausable:
                measurement.resume()

    def on_before_optimizer_step(self, context: MetricsContext) -> None:
        """Compute the gradient norms if a log interval ends with this step. Collective over the model."""
        if self._measure_gradients is None:
            return
        self._gradient_norms = {}
        if (context.state.train_state.step + 1) % self._log_interval == 0:
            scale = loss_scale(context.optimizer)
            self._gradient_norms = self._measure_gradients(loss_scale=1.0 if scale is None else scale)

    def on_train_step_end(self, context: MetricsContext) -> None:
        """Record the step. Collective over the model at the end of a log interval."""
        result = context.result
        if result is None:
            return
        counters: TrainCounters = context.state.train_state
        self._microbatches += result.samples // self._samples_per_microbatch
        ends_interval = result.step % self._log_interval == 0
        at_interval = self._at_interval(result.step) if ends_interval else {}
        self.metrics.record(
            result.step,
            {
                **result.losses,
                LEARNING_RATE: result.learning_rate,
                GRAD_NORM: result.grad_norm,
                NUM_ZEROS: result.num_zeros_in_grad,
                MAX_ATTENTION_LOGIT: result.max_attention_logit,
                LOSS_SCALE: loss_scale(context.optimizer),
                DECOUPLED_LEARNING_RATE: result.decoupled_learning_rate if self._decoupled_rate else None,
                SKIPPED_SAMPLES: counters.skipped_train_samples or None,
                **self._gradient_norms,
                **at_interval,
                FAILED_SAVES: self._failed_saves or None,
                **{name: value for read in self._step_values for name, value in read().items()},
            },
            samples=result.samples,
            tokens=result.tokens,
            skipped=result.skipped,
            consumed_samples=counters.consumed_train_samples,
        )

    def on_eval_start(self, context: MetricsContext) -> None:
        """Stop the step clock."""
        self._evaluation_pause.enter_context(self.pause())

    def on_eval_end(self, context: MetricsContext) -> None:
        """Record the losses of the evaluation, and restart the step clock.

        A rank without losses, as of an early stage, participates because metrics may be reduced over all ranks.
        """
        if context.total_loss_dict is not None:
            self.metrics.evaluation(context.state.train_state.step, context.total_loss_dict)
        self._evaluation_pause.close()

    def on_checkpoint_start(self, context: MetricsContext) -> None:
        """Flush the metrics of all steps before a save, and stop the step clock. Collective."""
        if context.checkpoint_work == "save":
            self.metrics.flush()
            self._save_pause.enter_context(self.pause())

    def on_checkpoint_end(self, context: MetricsContext) -> None:
        """Restart the step clock."""
        self._save_pause.close()

    def on_checkpoint_save(self, context: MetricsContext) -> None:
        """Pass a persistent checkpoint to the sinks that store files."""
        save = context.save
        if save is not None and save.path is not None and not save.non_persistent:
            self.metrics.keep_file(save.path, f"{save.path.parent.name}/{save.path.name}")

    def on_checkpoint_failed(self, context: MetricsContext) -> None:
        """Count a failed save; the number is recorded with each step from now on."""
        self._failed_saves += 1

    def _at_interval(self, step: int) -> dict[str, Value]:
        """Return the metrics that are measured at the end of a log interval only. Collective."""
        microbatches, self._microbatches = max(1, self._microbatches), 0
        metrics: dict[str, Value] = {}
        for values in self._interval_values:
            metrics |= values(step=step, microbatches=microbatches)
        if self._parameter_norm is not None:
            metrics[PARAMS_NORM] = self._parameter_norm()
        return metrics


def loss_scale(optimizer: Any) -> Value:
    """Return the loss scale; None for an optimizer without one, such as those of torch."""
    return optimizer.get_loss_scale() if isinstance(optimizer, ScalingOptimizer) else None
