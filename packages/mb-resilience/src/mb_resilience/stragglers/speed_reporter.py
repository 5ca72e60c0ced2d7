"""Callback that compares the speed of all ranks at each log interval. Standard library only."""

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from mb_resilience.loop_events import StepContext
from mb_resilience.stragglers.backward_timer import ScheduleTimers, schedule_config
from mb_resilience.stragglers.detection import StragglerTimer

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class ModelContext(Protocol):
    """What is read of the argument of `on_train_start`."""

    @property
    def model(self) -> Any:
        """The model, or its chunks."""


class SpeedReporter:
    """Callback that times forward steps, backward passes and data loading, and reports at each log interval.

    Reports are collective. The timer is paused outside of training steps, which excludes evaluations. Operations of a
    step are read from the counters of the run.

    Args:
        timer: timer of this rank.
        log_interval: steps between two reports.
    """

    def __init__(self, timer: StragglerTimer, *, log_interval: int) -> None:
        self._timer = timer
        self._log_interval = log_interval
        self._steps = 0
        self._reported_flops = 0.0
        self.metrics: Mapping[str, float] = {}
        """Metrics of the report after the step that ended last; empty without a report."""
        self._config: Any = None
        timer.pause()

    def wrap_forward_step(self, forward_step: Callable[Given, Returned]) -> Callable[Given, Returned]:
        """Return the forward step, timed."""
        return self._timer.wrap_function(forward_step)

    def wrap_data(self, data: Any) -> Any:
        """Return the data with timed reads: an iterator, a list with one per model chunk, or None."""
        if isinstance(data, list):
            return [self.wrap_data(each) for each in data]
        return None if data is None else self._timer.wrap_iterator(data)

    def on_train_start(self, context: ModelContext) -> None:
        """Time backward passes, if the model's configuration has timers that its schedule calls, as Megatron's has."""
        self._config = schedule_config(context.model)
        if self._config is not None:
            self._config.timers = ScheduleTimers(self._timer, previous=self._config.timers)

    def on_train_end(self, context: object) -> None:
        """Restore the timers of the model's configuration."""
        if self._config is not None:
            self._config.timers = self._config.timers.previous
            self._config = None

    def on_train_step_start(self, context: StepContext) -> None:
        """Resume the timer."""
        if self._steps == 0:
            self._reported_flops = context.state.train_state.floating_point_operations_so_far
        self._timer.resume()

    def on_train_step_end(self, context: StepContext) -> None:
        """Pause the timer, and report if a report is due."""
        self._timer.pause()
        self.metrics = {}
        self._steps += 1
        counters = context.state.train_state
        if counters.step % self._log_interval == 0:
            flops = counters.floating_point_operations_so_far - self._reported_flops
            report = self._timer.report(flops, self._steps)
            self._steps = 0
            self.metrics = {} if report is None else report.metrics()
