"""Time of a run by activity: training, evaluating, saving, starting, lost."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mb_metrics.names import ITERATION_TIME
from mb_metrics.report.accumulators import Accumulator, SortedValues
from mb_metrics.report.run_history import DiscardedSteps, RunHistory
from mb_metrics.report.series import Series
from mb_metrics.run.events import RunEvent, seconds_in

TimeKind = Literal["training", "evaluating", "saving", "starting", "lost", "other", "stopped"]
KINDS: tuple[TimeKind, ...] = ("training", "evaluating", "saving", "starting", "lost", "other")
"""Activities while a job runs or should run; "stopped" is the time between a stop and the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """Time span of an activity, in seconds since the epoch."""

    kind: str
    begin: float
    end: float
    step: int | None

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.end - self.begin


@dataclass(slots=True, kw_only=True)
class TimeSplit:
    """Seconds of a run by activity."""

    seconds: dict[TimeKind, float]
    """"lost" is work that was discarded and repeated, and the time from an unrecorded end to the restart."""
    step_seconds: SortedValues = field(default_factory=SortedValues)
    """Time of each step, excluding the first step after a start; the mean for a row that represents several steps."""
    waits: list[TimeSpan] = field(default_factory=list)
    """Evaluations and saves that blocked training."""
    attempts: list[TimeSpan] = field(default_factory=list)
    """Span from each start or resume to its last record; the kind is "stopped", or "killed" without a recorded stop."""
    redone_steps: int = 0

    @property
    def running_seconds(self) -> float:
        """Total seconds, excluding the time between a stop and the next start."""
        return math.fsum(self.seconds[kind] for kind in KINDS)

    @property
    def goodput(self) -> float | None:
        """Training time as a fraction of `running_seconds`; None if no time has passed."""
        total = self.running_seconds
        return self.seconds["training"] / total if total > 0 else None

    @property
    def median_step_seconds(self) -> float | None:
        """Median step time; None before the second step."""
        return self.step_seconds.median


_ORDERS = {"evaluation": 1, "save": 2, "stop": 3}


@dataclass(frozen=True, slots=True)
class _Moment:
    """Record with a known time, ordered by time; at equal times in the order of actions after a step."""

    time: float
    order: int
    kind: str
    step: int | None
    seconds: float | None
    before: float | None = None
    """For a resume: time of the last step of the previous attempt, if recorded."""
    before_step: int | None = None
    """For a resume: last step of the previous attempt, if recorded."""

    def __lt__(self, other: _Moment) -> bool:
        return (self.time, self.order) < (other.time, other.order)

    @property
    def begins(self) -> bool:
        return self.kind in ("start", "resume", "restart")


def split_time(run: RunHistory) -> TimeSplit:
    """Attribute the time between two consecutive records to the activity that the second one completes.

    A step ends with its row, an evaluation or a save with its event (or with the row of the evaluation). If an event
    recorded its `seconds`, only those are attributed to it. The time of the first step after a start that exceeds the
    median step time counts as "starting". Records without a time are ignored. Where the clock was set back, the rows
    continue from the row before, and the events with them.
    """
    return TimeSplitter().split(run)


class _ClockShifts(Accumulator):
    """Seconds by which the clock was set back between the rows of a run that grows."""

    def _reset(self) -> None:
        self._newest = -math.inf
        self._steps: list[int] = []
        self._seconds: list[float] = []

    def _add(self, new: Iterable[tuple[int, float]]) -> None:
        for step, time in new:
            if time < self._newest:
                self._seconds.append(self.at(step) + self._newest - time)
                self._steps.append(step)
            if math.isfinite(time):
                self._newest = time

    def at(self, step: int | None) -> float:
        """Return the seconds that are missing in the times of a step."""
        index = bisect_right(self._steps, step or 0)
        return self._seconds[index - 1] if index else 0.0


def _events(run: RunHistory, shifts: _ClockShifts) -> list[_Moment]:
    marks = [_mark(event, shifts) for event in run.events if math.isfinite(event.time)]
    marks += [
        _Moment(
            evaluation.time + shifts.at(evaluation.step),
            _ORDERS["evaluation"],
            "evaluation",
            evaluation.step,
            None,
        )
        for evaluation in run.evaluations
        if math.isfinite(evaluation.time)
    ]
    return sorted(marks)


def _mark(event: RunEvent, shifts: _ClockShifts) -> _Moment:
    # a start has the clock of the step after it
    shift = shifts.at((event.step or 0) + 1 if event.starts_attempt else event.step)
    before, step = seconds_in(event.details.get("previous_time")), event.details.get("previous_step")
    before_step = step if isinstance(step, int) else None
    return _Moment(
        event.time + shift,
        _ORDERS.get(event.kind, len(_ORDERS) + 1),
        event.kind,
        event.step,
        event.seconds,
        None if before is None else before + shifts.at(before_step),
        before_step,
    )


class TimeSplitter:
    """Split of the time of a run that grows: a call reads the new rows, all of them after a restart of the run."""

    def __init__(self) -> None:
        self._times: Series | None = None
        self._shifts = _ClockShifts()
        self._iteration_times: Series | None = None
        self._are_intervals = False
        self._events: list[_Moment] = []
        self._redone: list[DiscardedSteps] = []
        self._rows = self._cuts = 0
        self._untimed: dict[int, TimeKind] = {}
        self._first_steps: list[float] = []
        self._new_step_seconds: list[float] = []
        self._previous: _Moment | None = None
        self._last_row: int | None = None
        self._attempt: tuple[float, int | None] | None = None
        self._split = TimeSplit(seconds={})

    def split(self, run: RunHistory) -> TimeSplit:
        """Return the seconds so far; see `split_time`. The next call changes `step_seconds` and `waits` of it."""
        self._shifts.update(run.times)
        events = _events(run, self._shifts)
        redone = [*run.redone, *_discarded_steps(run, events, self._shifts)]
        if not self._continues(run, events, redone):
            self._start(run.times, redone)
        rows = [
            _Moment(time + self._shifts.at(step), 0, "row", step, None)
            for step, time in run.times.since(self._rows)
            if math.isfinite(time)
        ]
        new_events = events[len(self._events) :]
        earliest = min([*rows, *new_events], default=None)
        if self._previous is not None and earliest is not None and earliest < self._previous:
            self._times = None  # a late record, which belongs among those that were read
            return self.split(run)
        self._events, self._rows = events, len(run.times)
        self._iteration_times = run.series.get(ITERATION_TIME)
        self._are_intervals = run.rows_are_intervals
        self._untimed = _untimed(run) if run.rows_are_intervals else {}
        for mark in heapq.merge(rows, new_events):
            if self._previous is None:
                self._begin(mark, mark.seconds if mark.begins and mark.seconds else 0.0)
            else:
                self._between(self._previous, mark)
            self._previous = mark
        self._split.step_seconds.add(self._new_step_seconds)
        self._new_step_seconds = []
        return self._result()

    def _continues(
        self, run: RunHistory, events: Sequence[_Moment], redone: Sequence[DiscardedSteps]
    ) -> bool:
        """Return whether a run has what was read of it, and more."""
        return (
            run.times is self._times
            and run.times.cuts == self._cuts
            and not run.rows_are_intervals
            and events[: len(self._events)] == self._events
            and redone == self._redone
        )

    def _start(self, times: Series, redone: list[DiscardedSteps]) -> None:
        self._times, self._cuts, self._rows = times, times.cuts, 0
        self._split = TimeSplit(seconds=dict.fromkeys([*KINDS, "stopped"], 0.0))
        self._events, self._redone = [], redone
        self._first_steps, self._new_step_seconds = [], []
        self._previous = self._last_row = self._attempt = None

    def _result(self) -> TimeSplit:
        """Return the split as if the last record were the end."""
        split = replace(
            self._split,
            seconds=dict(self._split.seconds),
            attempts=list(self._split.attempts),
            redone_steps=sum(part.steps for part in self._redone),
        )
        if self._previous is not None and self._attempt is not None:
            split.attempts.append(_attempt(self._attempt, self._previous))
        usual = split.median_step_seconds
        for seconds in self._first_steps:
            training = seconds if usual is None else min(usual, seconds)
            split.seconds["training"] += training
            split.seconds["starting"] += seconds - training
        return split

    def _begin(self, mark: _Moment, seconds: float) -> None:
        self._split.seconds["starting"] += seconds
        self._attempt = mark.time - seconds, mark.step
        self._last_row = mark.step

    def _between(self, previous: _Moment, mark: _Moment) -> None:
        delta = max(0.0, mark.time - previous.time)
        if mark.begins:
            self._end_attempt(previous)
            starting = min(mark.seconds or 0.0, delta)
            self._gap(previous, delta - starting, mark)
            self._begin(mark, starting)
            return
        lost = min(self._lost_between(previous.time, mark.time), delta)
        self._add("lost", lost)
        delta -= lost
        if lost and mark.kind == "row":
            self._first_steps.append(delta)
            self._last_row = mark.step
        elif lost and not delta:
            return
        elif mark.kind == "row":
            self._row(previous, mark, delta)
        elif mark.kind in ("evaluation", "save"):
            own = delta if mark.seconds is None else min(mark.seconds, delta)
            self._add("evaluating" if mark.kind == "evaluation" else "saving", own)
            self._add("other", delta - own)
            self._wait(mark, own)
        else:
            self._add("other", delta)

    def _gap(self, previous: _Moment, delta: float, mark: _Moment) -> None:
        """Attribute the time between two attempts: "stopped" after a recorded stop, otherwise "lost"."""
        if previous.kind == "stop":
            self._add("stopped", delta)
        elif mark.before is not None:
            lost = min(max(0.0, mark.before - previous.time), delta)
            self._add("lost", lost)
            self._add("stopped", delta - lost)
        else:
            self._add("lost", delta)

    def _row(self, previous: _Moment, mark: _Moment, delta: float) -> None:
        step = mark.step or 0
        steps = 1 if self._last_row is None else max(1, step - self._last_row)
        step_seconds = _value_at(self._iteration_times, step)
        if math.isfinite(step_seconds) and (self._are_intervals or steps > 1):
            training = min(step_seconds * steps, delta)
            rest: TimeKind = (
                "starting" if previous.begins else self._untimed.get(self._last_row or 0, "other")
            )
            self._add("training", training)
            self._add(rest, delta - training)
            self._new_step_seconds.append(step_seconds)
        elif previous.begins:
            self._first_steps.append(delta)
        else:
            self._add("training", delta)
            self._new_step_seconds.append(delta / steps)
        self._last_row = step

    def _wait(self, mark: _Moment, seconds: float) -> None:
        waits = self._split.waits
        last = waits[-1] if waits else None
        if (
            last is not None
            and (last.kind, last.step) == (mark.kind, mark.step)
            and mark.time - last.end < 1.0
        ):
            waits[-1] = TimeSpan(kind=last.kind, begin=last.begin, end=mark.time, step=last.step)
        else:
            waits.append(TimeSpan(kind=mark.kind, begin=mark.time - seconds, end=mark.time, step=mark.step))

    def _lost_between(self, begin: float, end: float) -> float:
        return math.fsum(max(0.0, min(end, part.end) - max(begin, part.begin)) for part in self._redone)

    def _end_attempt(self, last: _Moment) -> None:
        if self._attempt is not None:
            self._split.attempts.append(_attempt(self._attempt, last))

    def _add(self, kind: TimeKind, seconds: float) -> None:
        self._split.seconds[kind] += seconds


def _attempt(begin: tuple[float, int | None], last: _Moment) -> TimeSpan:
    kind = "stopped" if last.kind == "stop" else "killed"
    return TimeSpan(kind=kind, begin=begin[0], end=last.time, step=begin[1])


def _value_at(series: Series | None, step: int) -> float:
    """Return the value of a series at a step; NaN if it has none."""
    if series is None:
        return math.nan
    index = bisect_left(series.steps, step)
    found = index < len(series) and series.steps[index] == step
    return series.values[index] if found else math.nan


def _untimed(run: RunHistory) -> dict[int, TimeKind]:
    """Return the activity after each step of a log without times."""
    kinds: dict[int, TimeKind] = {
        event.step: "saving" for event in run.events if event.kind == "save" and event.step
    }
    return {**kinds, **{evaluation.step: "evaluating" for evaluation in run.evaluations}}


def _discarded_steps(
    run: RunHistory, events: Sequence[_Moment], shifts: _ClockShifts
) -> list[DiscardedSteps]:
    """Return the steps that each resume discarded according to the events; their rows may be missing in the file."""
    parts: list[DiscardedSteps] = []
    for index, mark in enumerate(events):
        if not mark.begins or mark.step is None:
            continue
        attempt = _attempt_before(events[:index])
        later = [event for event in attempt if (event.step or 0) > mark.step]
        ends = [event.time for event in later]
        if mark.before is not None:
            ends.append(mark.before)
        # In any attempt: `ckpt_step` may name a checkpoint that is older than the last one.
        kept = [
            event.time
            for event in events[:index]
            if (event.step or 0) <= mark.step and event.time < mark.time
        ]
        time_of_step = _time_of(run, mark.step, shifts)
        if time_of_step is not None and time_of_step < mark.time:
            kept.append(time_of_step)
        newest = max([mark.step, mark.before_step or 0, *(event.step or 0 for event in later)])
        if newest > mark.step and ends and kept:
            parts.append(DiscardedSteps(steps=newest - mark.step, begin=max(kept), end=max(ends)))
    return parts


def _attempt_before(events: Sequence[_Moment]) -> Sequence[_Moment]:
    """Return the events of the last attempt among these."""
    begins = [index for index, event in enumerate(events) if event.begins]
    return events[begins[-1] :] if begins else events


def _time_of(run: RunHistory, step: int, shifts: _ClockShifts) -> float | None:
    time = _value_at(run.times, step) + shifts.at(step)
    return time if math.isfinite(time) else None
