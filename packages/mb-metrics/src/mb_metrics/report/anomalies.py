"""Steps of a run that a person should look at: spikes, losses that are not finite, and stalls."""

import math
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mb_metrics.report.accumulators import SlowSteps, Spikes
from mb_metrics.report.formatting import duration, short
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.time_split import TimeSplit

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


class AnomalyFinder:
    """Search for the anomalies of a run that grows.

    A spike of the main loss is a value that exceeds the usual value by 5 % and by 6 times the usual difference of two
    consecutive values, which is the noise without the trend; a spike of the gradient norm is a value of more than 4
    times the usual one and 10 times the noise. The usual value and the noise are running averages, into which an
    unusual value enters only in part. A stall is a step that took 8 times the median step and a second longer than it,
    without evaluations, saves and restarts.
    """

    def __init__(self) -> None:
        self._of_loss = Spikes(deviations=6.0, ratio=1.05)
        self._of_grad_norm = Spikes(deviations=10.0, ratio=4.0)
        self._slow_steps = SlowSteps()

    def find(self, run: RunHistory, split: TimeSplit) -> tuple[Anomaly, ...]:
        """Return the anomalies in the order of their steps, at most 500. Reads the new rows of a run alone."""
        anomalies = [*_nonfinite(run), *_stalls(run, split, self._slow_steps)]
        for name in run.losses[:1]:
            self._of_loss.update(run.series[name])
            anomalies += _spikes(name, self._of_loss)
        if run.grad_norm is not None:
            self._of_grad_norm.update(run.grad_norm)
            anomalies += _spikes("gradient norm", self._of_grad_norm)
        return tuple(sorted(anomalies, key=lambda anomaly: (anomaly.step, anomaly.kind))[:_MOST])


def data_command(run: RunHistory, step: int) -> str | None:
    """Return the command that shows the data of a step; None for a run that was not started by `mb`."""
    folder = Path(run.source)
    if run.config_text is None or not folder.is_dir():
        return None
    return shlex.join(["mb", "data", "at", str(folder), "--step", str(step)])


def _spikes(name: str, spikes: Spikes) -> Iterator[Anomaly]:
    for group in _grouped(spikes.found):
        (step, _, usual), peak = group[0], max(value for _, value, _ in group)
        yield Anomaly(kind="spike", metric=name, step=step, last_step=group[-1][0], value=peak, usual=usual)


def _nonfinite(run: RunHistory) -> Iterator[Anomaly]:
    name = next(iter(run.losses), "loss")
    for group in _grouped((step, math.nan, 0.0) for step in run.nonfinite.steps):
        first, last = group[0][0], group[-1][0]
        yield Anomaly(kind="NaN", metric=name, step=first, last_step=last, value=math.nan, usual=None)


def _stalls(run: RunHistory, split: TimeSplit, slow_steps: SlowSteps) -> Iterator[Anomaly]:
    usual = split.median_step_seconds
    if usual is None or run.rows_are_intervals:
        return
    ends = [span.end for span in split.waits]
    begins = [span.begin for span in split.attempts]
    lost = [part.end for part in run.redone]
    limit = max(8 * usual, usual + 1)
    slow: list[tuple[int, float, float]] = []
    for step, before, after in slow_steps.above(run.times, limit):
        seconds = after - before
        if _any_between(begins, before, after) or _any_between(lost, before, after):
            continue
        for span in split.waits[bisect_left(ends, before) :]:
            if span.begin >= after:
                break
            seconds -= max(0.0, min(span.end, after) - max(span.begin, before))
        if seconds > limit:
            slow.append((step, seconds, usual))
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
