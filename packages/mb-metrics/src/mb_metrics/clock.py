"""The time that steps take, with what is not a step left out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepClock:
    """Seconds between laps, without the pauses. `clock` returns seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()

    def restart(self) -> None:
        """Begin the next lap now."""
        self._last = self._clock()

    def lap(self) -> float:
        """Return the seconds since the last lap ended."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        return seconds

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time in this block out of the lap."""
        begin = self._clock()
        try:
            yield
        finally:
            self._last += self._clock() - begin
