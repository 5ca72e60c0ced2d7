"""W&B run that the calling program has opened: metrics are added to it, over their own step axis."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mb_metrics.recorder.record import LogInterval, MetricsRow
from mb_metrics.sinks.host_run import PREFIX, prefixed

STEP_AXIS = "mb_metrics/step"
"""Metric that is the x axis of all metrics that are added to the run."""
_logger = logging.getLogger(__name__)


class WandbHostRun:
    """W&B run of the calling program, to which metrics are added.

    W&B has one step counter per run, and drops what is logged for an earlier step. By default the counter is not
    advanced: the metrics of a log interval are added to the current step of the program, without `commit`.

    Args:
        run: The run.
        prefix: Prefix of the metrics; None: "mb_metrics/".
        commit: If True, each row is logged as a step of the run, which advances its counter.
    """

    def __init__(self, run: Any, *, prefix: str | None, commit: bool) -> None:
        self.run = run
        self.commit = commit
        self._prefix = PREFIX if prefix is None else prefix
        self._rows: list[MetricsRow] = []
        self._defined: set[str] = set()
        self._counter: int | None = None
        self._warned = False

    def add_row(self, row: MetricsRow) -> None:
        """Log a row, or keep it for the summary of its log interval."""
        if self.commit:
            self.log(row.step, row.values_and_samples)
        else:
            self._rows.append(row)

    def add_interval(self, interval: LogInterval) -> None:
        """Log the newest value of each metric, and the means of the losses, of the rows since the last call."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        kept = replace(interval, rows=tuple(rows))
        self._warn_if_replaced()
        self.log(rows[-1].step, kept.last.values_and_samples | kept.latest | kept.mean_losses)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log metrics of a step over the step axis."""
        named = prefixed(values, self._prefix)
        if not self._defined:
            self.run.define_metric(STEP_AXIS, hidden=True)
        for name in named.keys() - self._defined:
            self.run.define_metric(name, step_metric=STEP_AXIS)
        self._defined |= named.keys()
        self.run.log({**named, STEP_AXIS: step}, commit=self.commit)

    def _warn_if_replaced(self) -> None:
        counter = self.run.step
        if counter == self._counter and not self._warned:
            self._warned = True
            _logger.warning(
                "metrics: the program logs to its W&B run less often than once per log interval, so that only the "
                "newest interval of each of its steps is kept. Set log_interval higher, or, if the program does not "
                "pass step= to log(), WandbSink(..., commit=True)."
            )
        self._counter = counter
