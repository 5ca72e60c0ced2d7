"""Statistics of a run, from its history: the numbers of `mb-metrics report --json` and of the page."""

import math
from collections.abc import Sequence
from itertools import pairwise

from mb_metrics import names
from mb_metrics.report.accumulators import Extremes, FiniteValues, Ratios, SortedValues
from mb_metrics.report.anomalies import AnomalyFinder
from mb_metrics.report.formatting import duration
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.run_statistics import (
    LossStatistics,
    RunStatistics,
    RunStatus,
    StepTimeStatistics,
    WaitStatistics,
)
from mb_metrics.report.series import Series, mean_of
from mb_metrics.report.time_split import TimeSplit, TimeSplitter
from mb_metrics.run.events import RunEvent, seconds_in

_RECENT = 100
_LARGEST_SPREAD = 1.2
"""Ratio of the most and the fewest tokens of a step up to which all steps count as equal."""
PREDICTED_SPEED = "predicted_tokens_per_second_per_gpu"
"""Field of a start event: the throughput that was predicted for the run."""
_SILENT_SECONDS = 120.0


def compute_run_statistics(run: RunHistory, *, now: float, split: TimeSplit | None = None) -> RunStatistics:
    """Return the statistics of a run; `now` is in seconds since the epoch, `split` its time split if precomputed."""
    return IncrementalStatistics().compute(run, now=now, split=split)


class IncrementalStatistics:
    """Statistics of a run that grows: each call reads the rows since the last one, and all of them after a restart."""

    def __init__(self) -> None:
        self._splitter = TimeSplitter()
        self._finder = AnomalyFinder()
        self._extremes: dict[str, Extremes] = {}
        self._values: dict[str, FiniteValues] = {}
        self._tokens: dict[str, Ratios] = {}

    def compute(self, run: RunHistory, *, now: float, split: TimeSplit | None = None) -> RunStatistics:
        """Return the statistics of the data so far. Arguments as `compute_run_statistics`."""
        split = split or self._splitter.split(run)
        status, reason = run_status(run, split, now=now)
        step_seconds = _step_times(split.step_seconds)
        return RunStatistics(
            name=run.name,
            source=run.source,
            status=status,
            reason=reason,
            closed=run.closed,
            steps=run.last_step,
            total_steps=run.total_steps,
            losses={name: self._loss(name, run.series[name]) for name in run.losses},
            validation={
                name: self._loss(f"validation {name}", series) for name, series in run.validation.items()
            },
            step_seconds=step_seconds,
            tokens_per_second=self._tokens_per_second(run, step_seconds, device=""),
            tokens_per_second_per_device=self._tokens_per_second(run, step_seconds, device="device/"),
            predicted_tokens_per_second_per_device=predicted_speed(run.events),
            tflops_per_device=self._median(run, names.TFLOPS_PER_DEVICE),
            mfu=self._median(run, names.MFU),
            peak_memory=self._peaks(run),
            seconds=dict(split.seconds.items()),
            goodput=split.goodput,
            saves=_waits(split, "save"),
            evaluations=_waits(split, "evaluation"),
            restarts=max(len(split.attempts) - 1 - _continued(run.events), len(run.redone)),
            redone_steps=split.redone_steps,
            skipped_steps=int(sum(run.skipped.values)),
            nonfinite_steps=int(sum(run.nonfinite.values)),
            seconds_left=seconds_left(run, split) if status == "running" else None,
            warnings=run_warnings(run, split, status, now=now),
            anomalies=self._finder.find(run, split),
        )

    def _loss(self, name: str, series: Series) -> LossStatistics:
        extremes = self._extremes.setdefault(name, Extremes())
        extremes.update(series)
        recent = [value for value in series.values[-_RECENT:] if math.isfinite(value)]
        return LossStatistics(
            first=extremes.first,
            last=series.last,
            lowest=extremes.lowest[0] if extremes.lowest else None,
            lowest_step=extremes.lowest[1] if extremes.lowest else None,
            recent_mean=mean_of(recent) if recent else None,
            recent_steps=min(_RECENT, len(series)),
        )

    def _tokens_per_second(
        self, run: RunHistory, step: StepTimeStatistics | None, *, device: str
    ) -> float | None:
        """Return the tokens per second of the median step, or the median recorded rate if steps differ in their tokens.

        The recorded rate is a mean over a window of steps, which may be longer than a run has steps between two pauses.
        Of steps of different sizes, the median number of tokens and the median time are those of different steps.
        """
        name = f"throughput/{device}tokens_per_sec"
        tokens, steps = run.series.get(name), run.series.get(f"throughput/{device}batches_per_sec")
        per_step = None
        if tokens is not None and steps is not None:
            per_step = self._tokens.setdefault(device, Ratios()).of(tokens, steps)
        usual = None if per_step is None else per_step.median
        if per_step is None or usual is None or step is None or not step.median:
            return self._median(run, name)
        if per_step.highest > _LARGEST_SPREAD * per_step.percentile(0):
            return self._median(run, name)
        return usual / step.median

    def _median(self, run: RunHistory, name: str) -> float | None:
        series = run.series.get(name)
        if series is None:
            return None
        values = self._values.setdefault(name, FiniteValues())
        values.update(series)
        return values.sorted.median

    def _peaks(self, run: RunHistory) -> dict[str, float]:
        peaks = {}
        for name, series in run.series.items():
            if not is_memory(name):
                continue
            extremes = self._extremes.setdefault(f"peak {name}", Extremes())
            extremes.update(series)
            if extremes.highest is not None:
                peaks[name] = extremes.highest
        return peaks


def predicted_speed(events: Sequence[RunEvent]) -> float | None:
    """Return the tokens per second and device that were predicted before the newest start; None: no prediction."""
    values = [event.details.get(PREDICTED_SPEED) for event in events if event.starts_attempt]
    return next((speed for value in reversed(values) if (speed := seconds_in(value)) is not None), None)


def _continued(events: Sequence[RunEvent]) -> int:
    """Return how often a finished run was continued with more steps, which does not count as a restart."""
    marks = [event for event in events if event.kind == "stop" or event.starts_attempt]
    return sum(
        before.details.get("reason") in ("finished", "early_stop") and after.starts_attempt
        for before, after in pairwise(marks)
        if before.kind == "stop"
    )


def run_status(run: RunHistory, split: TimeSplit, *, now: float) -> tuple[RunStatus, str | None]:
    """Return the status of a run and the recorded reason of its stop.

    Without a recorded stop, a run is "running" if it wrote within the last two minutes, or within five times its usual
    interval between writes.
    """
    stop = next(
        (event for event in reversed(run.events) if event.kind == "stop" or event.starts_attempt), None
    )
    if stop is not None and stop.kind == "stop":
        reason = str(stop.details.get("reason", "stop"))
        statuses: dict[str, RunStatus] = {
            "finished": "complete",
            "early_stop": "complete",
            "failed": "failed",
        }
        return statuses.get(reason, "stopped"), reason
    if not split.attempts:
        return "empty", None
    if not run.events and run.last_step is not None and run.last_step >= (run.total_steps or math.inf):
        return "complete", None
    if run.rows_are_intervals:
        return "silent", None
    patience = max(_SILENT_SECONDS, 5 * _steps_between_writes(run) * (split.median_step_seconds or 0.0))
    return ("running" if now - split.attempts[-1].end < patience else "silent"), None


def _steps_between_writes(run: RunHistory) -> int:
    intervals = run.series.get(names.ITERATION_TIME)
    if intervals is None or len(intervals) < 2:
        return 10
    return max(1, intervals.steps[-1] - intervals.steps[-2])


def seconds_left(run: RunHistory, split: TimeSplit) -> float | None:
    """Return the time to the last step, from the last steps of the latest attempt, including waits."""
    last = run.last_step
    if last is None or run.total_steps is None or not split.attempts:
        return None
    begin = split.attempts[-1].begin
    newest = len(run.times) - 1
    first = newest
    while first > 0 and newest - first < _RECENT and run.times.values[first - 1] > begin:
        first -= 1
    steps = last - run.times.steps[first]
    seconds = run.times.values[-1] - run.times.values[first]
    if steps <= 0 or not math.isfinite(seconds):
        return None
    return max(0, run.total_steps - last) * seconds / steps


def run_warnings(run: RunHistory, split: TimeSplit, status: RunStatus, *, now: float) -> tuple[str, ...]:
    """Return the warnings on a run: problems of the run, data that could not be read, warnings in the log."""
    problems: list[str] = []
    skipped, nonfinite = int(sum(run.skipped.values)), int(sum(run.nonfinite.values))
    if nonfinite:
        problems.append(
            f"{_loss_names(run)} NaN or infinite in {_steps(nonfinite)}, first in step {run.nonfinite.steps[0]:,}."
        )
    if skipped:
        problems.append(f"The optimizer skipped {_steps(skipped)}, first step {run.skipped.steps[0]:,}.")
    deaths = sum(attempt.kind == "killed" for attempt in split.attempts[:-1])
    if deaths:
        problems.append(
            f"The run ended {'once' if deaths == 1 else f'{deaths} times'} without a recorded stop: killed or crashed."
        )
    if split.redone_steps:
        problems.append(f"{_steps(split.redone_steps).capitalize()} had to be repeated after a restart.")
    if status == "silent" and not run.rows_are_intervals:
        silent = now - split.attempts[-1].end
        problems.append(
            f"No stop is recorded, and nothing was written for {duration(silent)}: the run was killed or hangs."
        )
    if status == "failed":
        problems.append(f"The run ended with an error{'' if run.closed else '; see log.txt'}.")
    return (*problems, *(f"{note[0].upper()}{note[1:]}." for note in run.notes), *run.warnings)


def _loss_names(run: RunHistory) -> str:
    """Return the subject of a sentence: the losses that were not finite, or "The loss"."""
    losses = run.nonfinite_losses
    if len(losses) > 1:
        return f"{', '.join(losses[:-1])} and {losses[-1]} were"
    return f"{losses[0] if losses and losses[0] != 'loss' else 'The loss'} was"


def _steps(count: int) -> str:
    return "one step" if count == 1 else f"{count:,} steps"


def _step_times(seconds: SortedValues) -> StepTimeStatistics | None:
    if not len(seconds):
        return None
    return StepTimeStatistics(
        median=seconds.percentile(50),
        mean=seconds.mean,
        low=seconds.percentile(5),
        high=seconds.percentile(95),
        longest=seconds.highest,
    )


def is_memory(name: str) -> bool:
    """Return True if a metric is an amount of device memory."""
    return name.startswith("memory/") and any(unit in name for unit in ("byte", "gib", "GiB"))


def _waits(split: TimeSplit, kind: str) -> WaitStatistics:
    seconds = [span.seconds for span in split.waits if span.kind == kind]
    return WaitStatistics(count=len(seconds), seconds=math.fsum(seconds), longest=max(seconds, default=0.0))
