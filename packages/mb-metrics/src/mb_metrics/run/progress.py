"""Time spent and time left of a run, estimated from the steps of this job."""

from collections.abc import Mapping
from dataclasses import dataclass

from mb_metrics.names import TIME_BATCHES, TIME_LEFT, TIME_SAMPLES, TIME_TOKENS, TIME_TOTAL
from mb_metrics.recorder.clock import TimedStep

SECONDS: Mapping[str, float] = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """Progress of a run after a step. Times are read on access, which waits for the device.

    The time left includes evaluations and checkpoints at the rate observed so far: the work since the end of the first
    step of this job, divided by the time since then. Work is counted in samples if the length in samples and the
    consumed samples are known, so that a growing batch size does not bias the estimate; otherwise in steps. The first
    step includes compilation and warm-up and is used only while it is the only one.
    """

    first: TimedStep
    """First step of this job."""
    last: TimedStep
    total_steps: int | None
    """Length of the run in steps; None: not known."""
    total_samples: int | None
    """Length of the run in samples; None: not known."""

    @property
    def seconds_left(self) -> float | None:
        """Time to the end of the run as of the last step; None: the length of the run is not known."""
        first, last = self.first, self.last
        alone = first is last
        before = first.consumed_samples
        if alone and before is not None:
            before = None if first.samples is None else before - first.samples
        if self.total_samples is not None and last.consumed_samples is not None and before is not None:
            done, left = last.consumed_samples - before, self.total_samples - last.consumed_samples
        elif self.total_steps is not None:
            done, left = last.step - first.step + alone * first.steps, self.total_steps - last.step
        else:
            return None
        seconds = last.timer.seconds(first.begin if alone else first.end, last.end)
        return seconds / done * max(0, left) if done > 0 else None

    def values(self, unit: str) -> dict[str, float]:
        """Return time spent, time left and work done since the start of the run, under their `time/` names.

        Tokens are extrapolated from the consumed samples and the tokens per sample of this step.
        """
        last, left = self.last, self.seconds_left
        report = {TIME_TOTAL: last.timer.seconds(self.first.begin, last.end) / SECONDS[unit]}
        if left is not None:
            report[TIME_LEFT] = left / SECONDS[unit]
        if last.consumed_samples is not None:
            if last.tokens is not None and last.samples:
                report[TIME_TOKENS] = last.consumed_samples * last.tokens / last.samples
            report[TIME_SAMPLES] = float(last.consumed_samples)
        return report | {TIME_BATCHES: float(last.step)}
