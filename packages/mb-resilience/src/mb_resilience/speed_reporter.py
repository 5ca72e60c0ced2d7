"""Callback that compares the speed of all ranks at each log interval. Standard library only."""

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from mb_resilience.loop_events import StepContext
from mb_resilience.straggler import StragglerTimer

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class SpeedReporter:
    """Callback that times forward steps and data loading, and reports at each log interval. Reports are collective.

    The timer is paused outside of training steps, which excludes evaluations. Operations of a step are read from the
    counters of the run.

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
        timer.pause()

    def wrap_forward_step(self, forward_step: Callable[Given, Returned]) -> Callable[Given, Returned]:
        """Return the forward step, timed."""
        return self._timer.wrap_function(forward_step)

    def wrap_data(self, data: Any) -> Any:
        """Return the data with timed reads: an iterator, a list with one per model chunk, or None."""
        if isinstance(data, list):
            return [self.wrap_data(each) for each in data]
        return None if data is None else self._timer.wrap_iterator(data)

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
            found = self._timer.report(flops, self._steps)
            self._steps = 0
            self.metrics = {} if found is None else found.metrics()
