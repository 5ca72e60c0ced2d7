"""Recorder for code that logs the metrics of a step in several calls, or only at some steps."""

import logging
from collections.abc import Mapping
from typing import Any

from mb_metrics.recorder.arguments import checked_step
from mb_metrics.recorder.clock import StepSpan
from mb_metrics.recorder.metrics import Metrics
from mb_metrics.recorder.recorded_steps import Value, split_device_values

_logger = logging.getLogger(__name__)


class StepLogger:
    """Logger with a `log(values, step)` method, as other libraries have it, that records to `Metrics`.

    The metrics of several calls for one step become one record, when the next step is logged or the metrics are
    flushed or closed. The first call ends the time of the step, and of the steps since the previous one that were not
    logged; the time until a later call for the same step, such as an evaluation, is not part of any step.

    Args:
        metrics: Recorder; with sinks on one rank only.
        samples: Samples of a step, over all devices; None: not known.
        tokens: Tokens of a step, over all devices; None: not known.
        start_step: Completed steps before the first logged one; the step of the checkpoint in a resumed run.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        samples: int | None = None,
        tokens: int | None = None,
        start_step: int = 0,
    ) -> None:
        self.metrics = metrics
        self.recorded_step = start_step
        """Last step that was recorded; later calls cannot add metrics to it."""
        self._samples, self._tokens = samples, tokens
        self._step: int | None = None
        self._span: StepSpan | None = None
        self._values: dict[str, Value] = {}
        self._has_recorded = start_step > 0
        metrics.before_close(self._record_ended_step)

    def log(self, values: Mapping[str, Value], step: int, *, ends_step: bool = True) -> None:
        """Add metrics to a step.

        Args:
            values: Metric name to number or tensor, as in `Metrics.record`.
            step: Completed steps, including this one. It does not decrease from call to call.
            ends_step: If False, the call does not change the time of the step: its work is not done yet, or the next
                step has begun.

        Raises:
            TypeError: the step is not an integer.
            ValueError: the step is lower than that of the previous call, or is recorded already.
        """
        step = checked_step(step)
        if not self.accepts(step):
            raise ValueError(
                f"StepLogger.log: step {step} was logged after step {self.last_step}, and recorded steps are not "
                "changed. Log all metrics of a step before those of the next one, and count the steps in one way."
            )
        if self._step is not None and step > self._step:
            self.record()
        self._step = step
        self._values |= values
        if ends_step and self._span is not None:
            self.metrics.restart_clock()
        elif ends_step:
            self._span = self.metrics.end_step(steps=self._steps)

    def accepts(self, step: int) -> bool:
        """Return whether metrics can be added to a step: the current one, a later one, or 0 before all others."""
        if self._step is not None:
            return step >= self._step
        return step > self.recorded_step or (step == 0 and not self._has_recorded)

    def flush(self) -> None:
        """Record the current step and write every record to the sinks; waits for the device."""
        self.record()
        self.metrics.flush()

    def close(self) -> None:
        """Record the current step and close the metrics."""
        self.metrics.close()

    def record(self, *, samples: int | None = None, tokens: int | None = None) -> None:
        """Record the current step, if there is one; `samples` and `tokens` are those since the previous record."""
        if self._step is None:
            return
        step, span, values, steps = self._step, self._span, self._values, self._steps
        self._step, self._span, self._values, self.recorded_step = None, None, {}, step
        self._has_recorded = True
        if samples is None and self._samples is not None:
            samples = self._samples * steps
        if tokens is None and self._tokens is not None:
            tokens = self._tokens * steps
        self.metrics.record(step, values, samples=samples, tokens=tokens, span=span)

    @property
    def last_step(self) -> int:
        """The current step, or the last one that was recorded."""
        return self.recorded_step if self._step is None else self._step

    @property
    def current_names(self) -> set[str]:
        """Names of the metrics of the current step."""
        return {*self._values}

    def _record_ended_step(self) -> None:
        if self._span is not None:
            self.record()

    @property
    def _steps(self) -> int:
        return max(1, (self._step or 0) - self.recorded_step)


class HostLogger(StepLogger):
    """Logger for the loop of another library, which metrics must not end.

    What cannot be recorded is left out, and a line of the log has its names: text and other values that are no number,
    and steps that are no integer. Metrics of an earlier step belong to the current step, unless it has metrics of these
    names.
    """

    def log(self, values: Mapping[str, Any], step: Any, *, ends_step: bool = True) -> None:
        """Add metrics to a step; without a step, to the next one."""
        numbers = {name: value for name, value in values.items() if is_metric(name, value)}
        self._leave_out(values.keys() - numbers.keys(), "no numbers")
        try:
            number = self.last_step + 1 if step is None else checked_step(step)
        except TypeError:
            self._leave_out(numbers, f"of step {step!r:.50}, which is no integer")
            return
        if self.accepts(number):
            super().log(numbers, number, ends_step=ends_step)
            return
        late = {} if self._step is None else numbers
        self._values |= {name: value for name, value in late.items() if name not in self._values}
        self._leave_out(
            numbers.keys() - self._values.keys(), f"of step {number}, which came after step {self.last_step}"
        )

    def _leave_out(self, names: Any, why: str) -> None:
        if names:
            _logger.warning("metrics: %s not recorded: %s", ", ".join(sorted(map(str, names))), why)


def is_metric(name: str, value: Any) -> bool:
    """Return whether a value can be recorded as a metric."""
    try:
        split_device_values({name: value})
    except (TypeError, ValueError):
        return False
    return True
