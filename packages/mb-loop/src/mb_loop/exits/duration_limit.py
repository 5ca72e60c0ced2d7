"""Duration limit that all ranks agree on without a collective per step. Does not import torch."""

from collections.abc import Callable

MaxAcrossRanks = Callable[[float], float]
"""Returns the largest value over all ranks. Collective."""

MAX_STEPS = 1000
"""Maximum number of steps between two comparisons of the clocks."""


def single_process(value: float) -> float:
    """Return the value of the only process."""
    return value


class DurationLimit:
    """Limit on the time that a job runs, with the same result on all ranks.

    Every rank queries the limit after every step, but the ranks compare their clocks rarely. From the step time between
    two comparisons they compute the number of steps that half of the remaining time will last, and do not compare
    clocks before. A run of any length therefore needs a few dozen comparisons, most of them near the end. If steps
    become more than twice as slow, the limit is detected late. With a communication channel other than collectives,
    pass `duration_stop_requested` to `train` instead.

    Args:
        minutes: limit in minutes.
        clock: time in seconds.
        start_time: start of the job, on `clock`.
        max_across_ranks: maximum of a value over all ranks.
    """

    def __init__(
        self,
        *,
        minutes: float,
        clock: Callable[[], float],
        start_time: float,
        max_across_ranks: MaxAcrossRanks = single_process,
    ) -> None:
        self.minutes = minutes
        self._clock = clock
        self._start_time = start_time
        self._max_across_ranks = max_across_ranks
        self._last: tuple[int, float] | None = None
        self._next = 0
        self._reached = False

    def reached(self) -> bool:
        """Return whether the limit is reached on any rank. Collective until it is reached."""
        self._reached = self._reached or self._elapsed() >= self.minutes
        return self._reached

    def reached_after(self, step: int) -> bool:
        """Return whether the limit is reached after `step`. Collective only when the ranks compare their clocks."""
        if self._reached or step < self._next:
            return self._reached
        elapsed = self._elapsed()
        self._next = step + self._steps_until_next_check(step, elapsed)
        self._last = step, elapsed
        self._reached = elapsed >= self.minutes
        return self._reached

    def _elapsed(self) -> float:
        return self._max_across_ranks((self._clock() - self._start_time) / 60)

    def _steps_until_next_check(self, step: int, elapsed: float) -> int:
        """Return the number of steps until the next comparison.

        Computed from numbers that all ranks agree on, so that all ranks compare after the same step.
        """
        if self._last is None or elapsed <= self._last[1]:
            return 1
        minutes_per_step = (elapsed - self._last[1]) / (step - self._last[0])
        return max(1, min(MAX_STEPS, int((self.minutes - elapsed) / (2 * minutes_per_step))))
