"""A run as its files tell it: metrics in columns, evaluations, events, configuration."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mb_metrics import names
from mb_metrics.parse.log_lines import NONFINITE_STEPS, SKIPPED_STEPS
from mb_metrics.record import Evaluation, MetricsRow
from mb_metrics.redact import hide_secrets
from mb_metrics.report.series import Series
from mb_metrics.run_events import RunEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardedSteps:
    """Steps that were done, thrown away by a restart, and done again."""

    steps: int
    begin: float
    """When the last step that stands was recorded, in seconds since the epoch."""
    end: float
    """When the last step that was thrown away was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfiguration:
    """The settings of a run, by dotted path."""

    settings: Mapping[str, object]
    baseline: str | None = None
    """What the run is compared with: a recipe's name; None: with nothing."""
    changes: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    """Dotted path -> (the baseline's value, this run's)."""

    def __post_init__(self) -> None:
        """Hide secrets: a report is shown to others."""
        object.__setattr__(self, "settings", hide_secrets(self.settings))
        hidden = {
            path: (hide_secrets({path: old})[path], hide_secrets({path: new})[path])
            for path, (old, new) in self.changes.items()
            if not (isinstance(old, Mapping) or isinstance(new, Mapping))
        }
        object.__setattr__(self, "changes", {**self.changes, **hidden})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """What is known of a run. Steps that a restart threw away are in none of the series."""

    name: str
    source: str
    """What was read."""
    times: Series
    """When each step was recorded, in seconds since the epoch."""
    series: Mapping[str, Series]
    """Each metric by its name."""
    skipped: Series
    """How many steps the optimizer skipped, at each row that has some."""
    nonfinite: Series
    """How many steps had a NaN or infinite loss, at each row that has some."""
    evaluations: tuple[Evaluation, ...]
    events: tuple[RunEvent, ...]
    redone: tuple[DiscardedSteps, ...]
    rows_are_intervals: bool
    """Whether a row stands for the steps since the row before, as the lines of a log do."""
    total_steps: int | None
    configuration: RunConfiguration | None
    config_text: str | None
    """The configuration file as it stands, where nobody has read its settings."""
    warnings: tuple[str, ...]
    """Warnings of the log, each once."""
    notes: tuple[str, ...]
    """What could not be read."""

    @property
    def last_step(self) -> int | None:
        """The newest step; None before the first."""
        return self.times.steps[-1] if len(self.times) else None

    @property
    def losses(self) -> tuple[str, ...]:
        """The names of the losses, as they were recorded first."""
        return tuple(name for name in self.series if names.is_loss(name))


class RunBuilder:
    """Takes rows, evaluations and events in the order of their file.

    A row whose step is not later than the one before supersedes it and all from there on: the trainer went on from
    an older checkpoint.
    """

    def __init__(self) -> None:
        self.times = Series()
        self.series: dict[str, Series] = {}
        self.skipped = Series()
        self.nonfinite = Series()
        self.redone: list[DiscardedSteps] = []
        self.evaluations: dict[int, Evaluation] = {}

    def add(self, record: MetricsRow | Evaluation) -> None:
        """Take a record."""
        if isinstance(record, Evaluation):
            self.evaluations[record.step] = record
        else:
            self.add_row(record.step, record.time, record.values, skipped=record.skipped)

    def add_row(self, step: int, time: float, values: Mapping[str, float], *, skipped: bool = False) -> None:
        """Take a row."""
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
            if not math.isfinite(value) and names.is_loss(name):
                nonfinite = max(nonfinite, 1.0)
        skips = max(values.get(SKIPPED_STEPS, 0.0), float(skipped))
        if skips:
            self.skipped.append(step, skips)
        if nonfinite:
            self.nonfinite.append(step, nonfinite)

    def _go_back(self, step: int) -> None:
        newest, end = self.times.steps[-1], self.times.values[-1]
        for series in (self.times, self.skipped, self.nonfinite, *self.series.values()):
            series.cut_from(step)
        begin = self.times.values[-1] if len(self.times) else end
        last = self.times.steps[-1] if len(self.times) else step - 1
        self.redone.append(DiscardedSteps(steps=newest - last, begin=begin, end=end))
        self.evaluations = {at: found for at, found in self.evaluations.items() if at < step}
