"""Steps of a run that a person should look at: spikes, losses that are not finite, and stalls."""

import math
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal

from mb_metrics.report.formatting import duration, short
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.series import Series, mean_of
from mb_metrics.report.time_split import TimeSplit

_WARM_UP = 30
"""Values before the first one that can be a spike."""
_LEVEL_STEPS, _NOISE_STEPS = 20, 50
"""Values over which the usual value is averaged, and the usual difference of two consecutive values."""
_GAP = 10
"""Steps between two unusual steps that belong to one anomaly."""
_MOST = 500

AnomalyKind = Literal["NaN", "spike", "stall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """Unusual steps that belong together."""

    kind: AnomalyKind
    metric: str
    """Name of the metric; "step time" for a stall."""
    step: int
    """First unusual step."""
    last_step: int
    value: float
    """Largest value; NaN for losses that are not finite. Seconds for a stall."""
    usual: float | None
    """Usual value before the first unusual step; None for losses that are not finite."""

    @property
    def text(self) -> str:
        """Description without the step."""
        steps = "" if self.last_step == self.step else f", until step {self.last_step:,}"
        if self.kind == "stall":
            return f"step took {duration(self.value)}, usually {duration(self.usual)}{steps}"
        if self.kind == "NaN":
            return f"{self.metric} is NaN or infinite{steps}"
        return f"{self.metric} rose to {short(self.value)}, usually {short(self.usual)}{steps}"


def find_anomalies(run: RunHistory, split: TimeSplit) -> tuple[Anomaly, ...]:
    """Return the anomalies of a run in the order of their steps, at most 500.

    A spike of the main loss is a value that exceeds the usual value by 5 % and by 6 times the usual difference of two
    consecutive values, which is the noise without the trend; a spike of the gradient norm is a value of more than 4
    times the usual one and 10 times the noise. The usual value and the noise are running averages, into which an
    unusual value enters only in part. A stall is a step that took 8 times the median step and a second longer than it,
    without evaluations, saves and restarts.
    """
    anomalies = [*_nonfinite(run), *_stalls(run, split)]
    for name in run.losses[:1]:
        anomalies += _spikes(name, run.series[name], deviations=6.0, ratio=1.05)
    if run.grad_norm is not None:
        anomalies += _spikes("gradient norm", run.grad_norm, deviations=10.0, ratio=4.0)
    return tuple(sorted(anomalies, key=lambda anomaly: (anomaly.step, anomaly.kind))[:_MOST])


def data_command(run: RunHistory, step: int) -> str | None:
    """Return the command that shows the data of a step; None for a run that was not started by `mb`."""
    folder = Path(run.source)
    if run.config_text is None or not folder.is_dir():
        return None
    return shlex.join(["mb", "data", "at", str(folder), "--step", str(step)])


def _spikes(name: str, series: Series, *, deviations: float, ratio: float) -> Iterator[Anomaly]:
    unusual = _unusual_values(series, deviations=deviations, ratio=ratio)
    for group in _grouped(unusual):
        (step, _, usual), peak = group[0], max(value for _, value, _ in group)
        yield Anomaly(kind="spike", metric=name, step=step, last_step=group[-1][0], value=peak, usual=usual)


def _unusual_values(series: Series, *, deviations: float, ratio: float) -> Iterator[tuple[int, float, float]]:
    """Yield step, value and usual value of each spike."""
    first: list[float] = []
    usual = noise = previous = 0.0
    for step, value in series:
        if not math.isfinite(value):
            continue
        if len(first) < _WARM_UP:
            first.append(value)
            usual, previous = mean_of(first[-10:]), value
            noise = (
                median(abs(after - before) for before, after in pairwise(first)) if len(first) > 1 else 0.0
            )
            continue
        above = value - usual
        if above > deviations * noise and value > usual + (ratio - 1) * abs(usual):
            yield step, value, usual
        limit = 3 * noise + 1e-12
        usual += min(above, limit) / _LEVEL_STEPS  # without a limit below: a loss may fall quickly at first
        noise += (min(abs(value - previous), limit) - noise) / _NOISE_STEPS
        previous = value


def _nonfinite(run: RunHistory) -> Iterator[Anomaly]:
    name = next(iter(run.losses), "loss")
    for group in _grouped((step, math.nan, 0.0) for step in run.nonfinite.steps):
        first, last = group[0][0], group[-1][0]
        yield Anomaly(kind="NaN", metric=name, step=first, last_step=last, value=math.nan, usual=None)


def _stalls(run: RunHistory, split: TimeSplit) -> Iterator[Anomaly]:
    usual = split.median_step_seconds
    if usual is None or run.rows_are_intervals:
        return
    ends = [span.end for span in split.waits]
    begins = [span.begin for span in split.attempts]
    lost = [part.end for part in run.redone]
    slow: list[tuple[int, float, float]] = []
    steps, times = run.times.steps, run.times.values
    for index in range(1, len(steps)):
        before, after = times[index - 1], times[index]
        seconds = after - before
        if not seconds > max(8 * usual, usual + 1) or steps[index] != steps[index - 1] + 1:
            continue
        if _any_between(begins, before, after) or _any_between(lost, before, after):
            continue
        for span in split.waits[bisect_left(ends, before) :]:
            if span.begin >= after:
                break
            seconds -= max(0.0, min(span.end, after) - max(span.begin, before))
        if seconds > max(8 * usual, usual + 1):
            slow.append((steps[index], seconds, usual))
    for group in _grouped(slow):
        longest = max(seconds for _, seconds, _ in group)
        yield Anomaly(
            kind="stall",
            metric="step time",
            step=group[0][0],
            last_step=group[-1][0],
            value=longest,
            usual=usual,
        )


def _any_between(times: list[float], begin: float, end: float) -> bool:
    return any(begin <= time <= end for time in times)


def _grouped(unusual: Iterable[tuple[int, float, float]]) -> Iterator[list[tuple[int, float, float]]]:
    group: list[tuple[int, float, float]] = []
    for value in unusual:
        if group and value[0] - group[-1][0] > _GAP:
            yield group
            group = []
        group.append(value)
    if group:
        yield group
