"""Callback that compares the speed of all ranks at each log interval. Standard library only.

Backward passes are timed through the timers that Megatron's schedules call: a schedule calls
`config.timers("backward-compute").start()` before each backward pass of a microbatch and `stop()` after it.
`ScheduleTimers` takes the place of `config.timers`, times these sections, and passes every call on to the previous
timers.
"""

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from mb_resilience.loop_events import StepContext
from mb_resilience.stragglers.detection import StragglerTimer

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

BACKWARD = "backward-compute"
"""Name of the section in Megatron's schedules."""


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


class ScheduleTimers:
    """Timers for a schedule that time backward passes.

    Args:
        timer: receives the backward passes.
        previous: timers that receive every call as well; None: there are none.
    """

    def __init__(self, timer: StragglerTimer, *, previous: Callable[..., Any] | None = None) -> None:
        self._timer = timer
        self.previous = previous

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> "ScheduleSection":
        """Return the section of a name; further arguments are those of the previous timers."""
        previous = None if self.previous is None else self.previous(name, *args, **kwargs)
        return ScheduleSection(self._timer if name == BACKWARD else None, previous)


class ScheduleSection:
    """Section of a schedule, with the interface of Megatron's timers that schedules use."""

    def __init__(self, timer: StragglerTimer | None, previous: Any) -> None:
        self._timer = timer
        self._previous = previous

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the section."""
        if self._previous is not None:
            self._previous.start(*args, **kwargs)
        if self._timer is not None:
            self._timer.start_backward()

    def stop(self, *args: Any, **kwargs: Any) -> None:
        """End the section."""
        if self._timer is not None:
            self._timer.stop_backward()
        if self._previous is not None:
            self._previous.stop(*args, **kwargs)


def schedule_config(model: Any) -> Any:
    """Return the configuration whose timers a schedule calls, of the first chunk of a model; None: it has none."""
    chunk = model[0] if isinstance(model, list | tuple) else model
    while chunk is not None:
        config = getattr(chunk, "config", None)
        if hasattr(config, "timers"):
            return config
        chunk = getattr(chunk, "module", None)
    return None
