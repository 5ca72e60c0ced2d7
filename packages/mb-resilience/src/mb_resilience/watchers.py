"""A wish to stop that comes with time instead of a signal."""

import time
from collections.abc import Callable

from mb_resilience.agreed_stop import Watcher


class DeadlineWatcher:
    """Fits `AgreedStop` as its watcher: it wishes to stop once the job has run for so long on this rank.

    Args:
        minutes: the limit.
        start_time: when the job began, on `clock`.
        what: what is said when the time has passed.
        clock: seconds.
    """

    def __init__(
        self,
        minutes: float,
        *,
        start_time: float,
        what: str = "the time",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._end = start_time + 60 * minutes
        self._text = f"{what} has passed"
        self._clock = clock

    @property
    def received(self) -> str | None:
        """Say that the time has passed; None before."""
        return self._text if self._clock() >= self._end else None


class CombinedWatcher:
    """Fits `AgreedStop` as its watcher: it wishes what the first of several that wishes something does.

    Args:
        watchers: in the order in which they are asked.
    """

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    @property
    def received(self) -> str | None:
        """Return the first wish; None where there is none."""
        requests = (watcher.received for watcher in self._watchers)
        return next((request for request in requests if request is not None), None)
