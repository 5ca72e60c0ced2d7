"""Time spent and time left of a run, estimated from the steps of this job."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mb_metrics.clock import Timer
from mb_metrics.names import TIME_BATCHES, TIME_LEFT, TIME_SAMPLES, TIME_TOKENS, TIME_TOTAL

SECONDS: Mapping[str, float] = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMark:
    """Position of a run at the end of a step."""

    mark: Any
    """Mark of the job's timer."""
    step: int
    samples: int | None
    """Sequences of this step."""
    tokens: int | None
    """Tokens of this step."""
    consumed_samples: int | None
    """Sequences since the start of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """Progress of a run after a step. Times are read on access, which waits for the device."""

    timer: Timer
    begin: Any
    """Mark of the start of the job."""
    first: StepMark
    """End of the first step of this job; for the first step itself, the start of the job."""
    last: StepMark
    total_steps: int | None
    total_samples: int | None

    @property
    def seconds_left(self) -> float | None:
        """Time to the end of the run as of this step; None: the length of the run is not known."""
        first, last = self.first, self.last
        if (
            self.total_samples is not None
            and last.consumed_samples is not None
            and first.consumed_samples is not None
        ):
            done = last.consumed_samples - first.consumed_samples
            left = self.total_samples - last.consumed_samples
        elif self.total_steps is not None:
            done, left = last.step - first.step, self.total_steps - last.step
        else:
            return None
        return self.timer.seconds(first.mark, last.mark) / done * max(0, left) if done > 0 else None

    def values(self, unit: str) -> dict[str, float]:
        """Return time spent, time left and work done since the start of the run, under their `time/` names.

        Tokens are extrapolated from the consumed samples and the tokens per sample of this step.
        """
        last, left = self.last, self.seconds_left
        report = {TIME_TOTAL: self.timer.seconds(self.begin, last.mark) / SECONDS[unit]}
        if left is not None:
            report[TIME_LEFT] = left / SECONDS[unit]
        if last.consumed_samples is not None:
            if last.tokens is not None and last.samples:
                report[TIME_TOKENS] = last.consumed_samples * last.tokens / last.samples
            report[TIME_SAMPLES] = float(last.consumed_samples)
        return report | {TIME_BATCHES: float(last.step)}


class ProgressEstimator:
    """Estimator of the time left, including evaluations and checkpoints at the rate observed so far.

    The rate is the work since the end of this job's first step, divided by the time since then. Work is counted in
    samples if the length in samples and the consumed samples are known, so that a growing batch size does not bias
    the estimate; otherwise in steps. The first step includes compilation and warm-up and is used only while it is
    the only one.

    Args:
        timer: Timer that records marks.
        total_steps: Length of the run in steps; None: not known.
        total_samples: Length of the run in samples; None: not known.
    """

    def __init__(self, timer: Timer, *, total_steps: int | None, total_samples: int | None) -> None:
        self._timer = timer
        self._total_steps = total_steps
        self._total_samples = total_samples
        self._begin = timer.mark()
        self._first: StepMark | None = None
        self._progress: RunProgress | None = None

    def restart(self) -> None:
        """Set the start of the job to now, before the first step."""
        self._begin = self._timer.mark()

    def step(self, last: StepMark) -> None:
        """Register a completed step."""
        self._progress = RunProgress(
            timer=self._timer,
            begin=self._begin,
            first=self._before(last) if self._first is None else self._first,
            last=last,
            total_steps=self._total_steps,
            total_samples=self._total_samples,
        )
        if self._first is None:
            self._first = last

    @property
    def progress(self) -> RunProgress | None:
        """Progress as of the last step; None before the first."""
        return self._progress

    def _before(self, step: StepMark) -> StepMark:
        known = step.consumed_samples is not None and step.samples is not None
        return StepMark(
            mark=self._begin,
            step=step.step - 1,
            samples=None,
            tokens=None,
            consumed_samples=(step.consumed_samples or 0) - (step.samples or 0) if known else None,
        )
