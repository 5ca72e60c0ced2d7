"""How long a run has taken and will take, from the pace of this job."""

from collections.abc import Callable, Mapping

from mb_metrics.names import TIME_LEFT, TIME_TOTAL

SECONDS: Mapping[str, float] = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}


class Pace:
    """Estimates the time left, evaluations and checkpoints like those so far included.

    The pace is this job's own: the time since its first step ended, by what was done since. Where the length in
    samples and the samples consumed are known, what is done counts in samples, so that a growing batch size does not
    mislead; else in steps. The first step, which compiles and warms up, counts only as long as it is the only one.

    Args:
        clock: Seconds, monotonic.
        total_steps: Length of the run in steps; None: not known.
        total_samples: Length of the run in samples; None: not known.
    """

    def __init__(
        self, clock: Callable[[], float], *, total_steps: int | None, total_samples: int | None
    ) -> None:
        self._clock = clock
        self._total_steps = total_steps
        self._total_samples = total_samples
        self._begin = clock()
        self._first: tuple[float, int, int | None] | None = None
        self._left: float | None = None

    def restart(self) -> None:
        """Begin now, before the first step."""
        self._begin = self._clock()

    def step(self, step: int, *, samples: int | None, consumed_samples: int | None) -> None:
        """Take note of a step that has ended, how many samples it had and how many there were so far."""
        now = self._clock()
        left = self._remaining(step, now, samples, consumed_samples)
        if self._first is None:
            self._first = (now, step, consumed_samples)
        self._left = left

    @property
    def seconds(self) -> float:
        """Time since the job began."""
        return self._clock() - self._begin

    @property
    def seconds_left(self) -> float | None:
        """Time to the end of the run as of the last step; None: its length is not known."""
        return self._left

    def values(self, unit: str) -> dict[str, float]:
        """Return time spent and time left under their `time/` names."""
        divisor = SECONDS[unit]
        report = {TIME_TOTAL: self.seconds / divisor}
        if self._left is not None:
            report[TIME_LEFT] = self._left / divisor
        return report

    def _remaining(self, step: int, now: float, samples: int | None, consumed: int | None) -> float | None:
        begin, first_step, first_samples = self._first or (
            self._begin,
            step - 1,
            None if consumed is None or samples is None else consumed - samples,
        )
        seconds = now - begin
        if self._total_samples is not None and consumed is not None and first_samples is not None:
            done, left = consumed - first_samples, self._total_samples - consumed
        elif self._total_steps is not None:
            done, left = step - first_step, self._total_steps - step
        else:
            return None
        return seconds / done * max(0, left) if done > 0 else None
