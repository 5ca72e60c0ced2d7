"""Data of a run, read from its files: metrics in columns, evaluations, events, configuration."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mb_metrics import names
from mb_metrics.parse.log_lines import NONFINITE_STEPS, SKIPPED_STEPS
from mb_metrics.recorder.record import Evaluation, MetricsRow
from mb_metrics.report.metric_names import MetricNames
from mb_metrics.report.run_settings import RunConfiguration
from mb_metrics.report.series import Series
from mb_metrics.run.events import RunEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardedSteps:
    """Steps that a restart discarded and repeated."""

    steps: int
    begin: float
    """Time of the last step that was kept, in seconds since the epoch."""
    end: float
    """Time of the last step that was discarded, in seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """Data of a run. Steps that a restart discarded are in none of the series."""

    name: str
    source: str
    """Path, and format of a log, that the run was read from."""
    times: Series
    """Time at which each step was recorded, in seconds since the epoch."""
    series: Mapping[str, Series]
    """Metrics by name."""
    skipped: Series
    """Number of skipped steps, for each row with at least one."""
    nonfinite: Series
    """Number of steps with a NaN or infinite loss, for each row with at least one."""
    nonfinite_losses: tuple[str, ...] = ()
    """Names of the losses that were NaN or infinite; a log may count the steps without them."""
    evaluations: tuple[Evaluation, ...]
    events: tuple[RunEvent, ...]
    redone: tuple[DiscardedSteps, ...]
    rows_are_intervals: bool
    """If True, a row represents the steps since the previous row, as in a log."""
    total_steps: int | None
    configuration: RunConfiguration | None
    config_text: str | None
    """Text of the configuration file with secrets masked, shown if its settings are not parsed."""
    warnings: tuple[str, ...]
    """Distinct warnings of the log."""
    notes: tuple[str, ...]
    """Notes on data that could not be read."""
    closed: bool | None = None
    """Whether the metrics file ends with the mark of a closed run; None: the end is an event, or in a log."""
    metric_names: MetricNames = field(default_factory=MetricNames)
    """Names of the losses and of the learning rate."""

    @property
    def last_step(self) -> int | None:
        """The latest step; None before the first."""
        return self.times.steps[-1] if len(self.times) else None

    @property
    def losses(self) -> tuple[str, ...]:
        """Names of the training losses, the main one first, then in the order of their first record."""
        return self.metric_names.find_losses(self.series)

    @property
    def learning_rate(self) -> Series | None:
        """Learning rate; None if it was not recorded."""
        return self._named(self.metric_names.find_learning_rate(self.series))

    @property
    def grad_norm(self) -> Series | None:
        """Norm of the gradient; None if it was not recorded."""
        return self._named(names.find_grad_norm(self.series))

    def _named(self, name: str | None) -> Series | None:
        return None if name is None else self.series.get(name)

    @property
    def validation(self) -> dict[str, Series]:
        """Validation losses by name: of the evaluations, and those that were recorded as metrics of a step."""
        evaluated: dict[str, Series] = {}
        for evaluation in sorted(self.evaluations, key=lambda evaluation: evaluation.step):
            for name, loss in evaluation.losses.items():
                evaluated.setdefault(name, Series()).append(evaluation.step, loss)
        training_losses = self.losses
        return evaluated | {
            name: series
            for name, series in self.series.items()
            if names.is_validation_loss(name) and name not in training_losses
        }


class RunBuilder:
    """Builder of the series of a run from rows and evaluations in file order.

    A row whose step does not increase discards all rows from that step on: the trainer resumed from an older
    checkpoint.
    """

    def __init__(self, metric_names: MetricNames) -> None:
        self._metric_names = metric_names
        self.times = Series()
        self.series: dict[str, Series] = {}
        self.skipped = Series()
        self.nonfinite = Series()
        self._nonfinite_losses: dict[str, int] = {}
        self.redone: list[DiscardedSteps] = []
        self.evaluations: dict[int, Evaluation] = {}

    def history(self, **others: Any) -> RunHistory:
        """Return the data of the run; `others` are the fields of `RunHistory` that rows and evaluations do not have.

        Raises:
            MetricNotRecordedError: metrics were recorded, and none of a requested name.
        """
        self._metric_names.require_recorded(self.series, source=others["source"])
        return RunHistory(
            times=self.times,
            series=self.series,
            skipped=self.skipped,
            nonfinite=self.nonfinite,
            nonfinite_losses=tuple(self._nonfinite_losses),
            evaluations=tuple(self.evaluations.values()),
            redone=tuple(self.redone),
            metric_names=self._metric_names,
            **others,
        )

    def add(self, record: MetricsRow | Evaluation) -> None:
        """Add a record."""
        if isinstance(record, Evaluation):
            self.evaluations[record.step] = record
        else:
            self.add_row(record.step, record.time, record.values, skipped=record.skipped)

    def add_row(self, step: int, time: float, values: Mapping[str, float], *, skipped: bool = False) -> None:
        """Add a row."""
        if len(self.times) and step <= self.times.steps[-1]:
            self._go_back(step)
        self.times.append(step, time)
        nonfinite = values.get(NONFINITE_STEPS, 0.0)
        for name, value in values.items():
            if name in (SKIPPED_STEPS, NONFINITE_STEPS):
                continue
            series = self.series.get(name)
            if series is None:
                series = self.series[name] = Series()
            series.append(step, value)
            if not math.isfinite(value) and self._metric_names.is_loss(name):
                nonfinite = max(nonfinite, 1.0)
                self._nonfinite_losses.setdefault(name, step)
        skips = max(values.get(SKIPPED_STEPS, 0.0), float(skipped))
        if skips:
            self.skipped.append(step, skips)
        if nonfinite:
            self.nonfinite.append(step, nonfinite)

    def _go_back(self, step: int) -> None:
        newest, end = self.times.steps[-1], self.times.values[-1]
        for series in (self.times, self.skipped, self.nonfinite, *self.series.values()):
            series.cut_from(step)
        self._nonfinite_losses = {name: at for name, at in self._nonfinite_losses.items() if at < step}
        begin = self.times.values[-1] if len(self.times) else end
        last = self.times.steps[-1] if len(self.times) else step - 1
        self.redone.append(DiscardedSteps(steps=newest - last, begin=begin, end=end))
        self.evaluations = {at: losses for at, losses in self.evaluations.items() if at < step}
