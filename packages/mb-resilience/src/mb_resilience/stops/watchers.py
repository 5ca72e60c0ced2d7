"""Sources of stop requests other than signals: a deadline, and a combination of several sources."""

import time
from collections.abc import Callable

from mb_resilience.stops.agreed_stop import Watcher


class DeadlineWatcher:
    """Watcher that requests a stop when the job has run for a number of minutes on this rank.

    Args:
        minutes: duration of the job.
        start_time: start of the job, on `clock`.
        what: name of the limit in the reason, such as the setting.
        clock: returns the time in seconds.
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
        """Reason of the stop request; None before the deadline."""
        return self._text if self._clock() >= self._end else None


class CombinedWatcher:
    """Watcher that combines several watchers.

    Args:
        watchers: watchers in the order in which they are checked.
    """

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    @property
    def received(self) -> str | None:
        """First stop request among the watchers; None without a request."""
        requests = (watcher.received for watcher in self._watchers)
        return next((request for request in requests if request is not None), None)
