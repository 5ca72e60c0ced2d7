"""Leave after some minutes, agreed by all ranks without asking them after every step. No torch."""

from collections.abc import Callable

Longest = Callable[[float], float]
"""Returns the largest of what the ranks pass. Collective."""

MOST_STEPS = 1000
"""Steps between two questions, at most."""


def alone(value: float) -> float:
    """Answer for one process."""
    return value


class Duration:
    """A limit on the time that the job runs.

    All ranks ask for every step, and hear the same. They compare their clocks rarely: when they did, the step time that
    they saw together says how many steps half of the remaining time will last, and nobody looks before. So a run of any
    length needs some dozen questions, and near the end one per step. Steps that get more than twice as slow make it
    late; where ranks have a channel beside their collectives, it serves better (`time_wish` of `train`).

    Args:
        minutes: the limit.
        clock: seconds.
        start_time: when the job began, on `clock`.
        longest: agreement of the ranks.
    """

    def __init__(
        self, *, minutes: float, clock: Callable[[], float], start_time: float, longest: Longest = alone
    ) -> None:
        self.minutes = minutes
        self._clock = clock
        self._start_time = start_time
        self._longest = longest
        self._last: tuple[int, float] | None = None
        self._next = 0
        self._up = False

    def passed(self) -> bool:
        """Say whether the time is up on any rank. Collective, until it is."""
        self._up = self._up or self._elapsed() >= self.minutes
        return self._up

    def passed_after(self, step: int) -> bool:
        """Say the same after a step; collective only at the steps where the ranks compare their clocks."""
        if self._up or step < self._next:
            return self._up
        elapsed = self._elapsed()
        self._next = step + self._patience(step, elapsed)
        self._last = step, elapsed
        self._up = elapsed >= self.minutes
        return self._up

    def _elapsed(self) -> float:
        return self._longest((self._clock() - self._start_time) / 60)

    def _patience(self, step: int, elapsed: float) -> int:
        """Return how many steps need no question; from agreed numbers only, so that it is the same on all ranks."""
        if self._last is None or elapsed <= self._last[1]:
            return 1
        minutes_per_step = (elapsed - self._last[1]) / (step - self._last[0])
        return max(1, min(MOST_STEPS, int((self.minutes - elapsed) / (2 * minutes_per_step))))
