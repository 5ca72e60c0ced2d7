"""Time and tokens at the steps of a run, for the x axis of its charts."""

import math
import re
from bisect import bisect_right
from collections.abc import Sequence

from mb_metrics import names
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.time_split import TimeSplit

_KNOTS = 200
_SEQ_LENGTH = re.compile(r"^\s*(?:seq_length|sequence_length):\s*(\d+)\s*$", re.MULTILINE)
_SEQ_LENGTH_SETTINGS = ("model.seq_length", "dataset.seq_length", "dataset.sequence_length")


def x_axes(run: RunHistory, split: TimeSplit) -> dict[str, list[float]]:
    """Return the columns "step", "time" and "tokens" or "samples" at some steps; values between are interpolated.

    Time is in seconds in which the run was running. "tokens" needs consumed samples and the sequence length in the
    settings. Columns that are not known are left out.
    """
    steps = _some_steps(run)
    columns = {"step": [float(step) for step in steps]}
    times = [_running_seconds(time, split) for time in _at(run.times.steps, run.times.values, steps)]
    if len(times) > 1 and all(math.isfinite(time) for time in times) and times[-1] > times[0]:
        columns["time"] = [round(time, 3) for time in times]
    samples = run.series.get(names.CONSUMED_SAMPLES)
    if samples is not None and len(samples):
        length = _seq_length(run)
        name, factor = ("samples", 1) if length is None else ("tokens", length)
        columns[name] = [factor * value for value in _at(samples.steps, samples.values, steps)]
    return columns


def _some_steps(run: RunHistory) -> list[int]:
    """Return evenly spaced recorded steps, and those next to a gap between attempts."""
    steps, every = run.times.steps, max(1, len(run.times) // _KNOTS)
    chosen = {*steps[::every], *steps[-1:]}
    for event in run.events:
        if event.starts_attempt and event.step is not None:
            index = bisect_right(steps, event.step)
            chosen |= {*steps[max(0, index - 1) : index + 1]}
    return sorted(chosen)


def _at(steps: Sequence[int], values: Sequence[float], wanted: Sequence[int]) -> list[float]:
    """Return the value at each wanted step, or at the last step before it."""
    return [values[max(0, bisect_right(steps, step) - 1)] for step in wanted]


def _running_seconds(time: float, split: TimeSplit) -> float:
    """Return the time since the start, without the time between attempts."""
    total = 0.0
    for number, span in enumerate(split.attempts):
        last = number == len(split.attempts) - 1
        if last or time <= span.end:
            return total + max(0.0, time - span.begin)
        total += span.seconds
    return math.nan


def _seq_length(run: RunHistory) -> int | None:
    if run.configuration is not None:
        settings = run.configuration.settings
        lengths = (settings.get(path) for path in _SEQ_LENGTH_SETTINGS)
        return next((value for value in lengths if isinstance(value, int) and value > 0), None)
    match = _SEQ_LENGTH.search(run.config_text or "")
    return int(match[1]) if match else None
