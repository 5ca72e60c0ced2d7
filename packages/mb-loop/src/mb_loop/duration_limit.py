"""Leave after some minutes, agreed by all ranks without asking them after every step. No torch."""

from collections.abc import Callable

MaxAcrossRanks = Callable[[float], float]
"""Returns the largest of what the ranks pass. Collective."""

MAX_STEPS = 1000
"""Steps between two questions, at most."""


def single_process(value: float) -> float:
    """Answer for one process."""
    return value


class DurationLimit:
    """A limit on the time that the job runs.

    All ranks ask for every step, and hear the same. They compare their clocks rarely: when they did, the step time that
    they saw together says how many steps half of the remaining time will last, and nobody looks before. So a run of any
    length needs some dozen questions, and near the end one per step. Steps that get more than twice as slow make it
    late; where ranks have a channel beside their collectives, it serves better (`duration_stop_requested` of `train`).

    Args:
        minutes: the limit.
        clock: seconds.
        start_time: when the job began, on `clock`.
        max_across_ranks: agreement of the ranks.
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
        """Say whether the time is up on any rank. Collective, until it is."""
        self._reached = self._reached or self._elapsed() >= self.minutes
        return self._reached

    def reached_after(self, step: int) -> bool:
        """Say the same after a step; collective only at the steps where the ranks compare their clocks."""
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
        """Return how many steps need no question; from agreed numbers only, so that it is the same on all ranks."""
        if self._last is None or elapsed <= self._last[1]:
            return 1
        minutes_per_step = (elapsed - self._last[1]) / (step - self._last[0])
        return max(1, min(MAX_STEPS, int((self.minutes - elapsed) / (2 * minutes_per_step))))
