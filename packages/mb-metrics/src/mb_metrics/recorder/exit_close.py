"""Closing of a recorder at the end of the process, if the program did not close it."""

import atexit
import logging
import os
import sys
from collections.abc import Callable
from functools import cache

_logger = logging.getLogger(__name__)


class ExitClose:
    """Call of `close` at the end of the process, unless it is cancelled; a line of the log reports it once.

    Args:
        close: Function that closes the recorder. It is called with True if an exception ends the program.
    """

    def __init__(self, close: Callable[[bool], None]) -> None:
        self._close = close
        self._process: int | None = None

    def arm(self) -> None:
        """Register the call, if it is not registered."""
        if self._process is None:
            self._process = os.getpid()
            atexit.register(self._run)

    def renew(self) -> None:
        """Register the call again: functions registered last are called first, before trackers end their runs."""
        self.cancel()
        self.arm()

    def cancel(self) -> None:
        """Remove the call."""
        self._process = None
        atexit.unregister(self._run)

    def _run(self) -> None:
        if self._process == os.getpid():  # a forked process leaves the files to its parent
            _report_once()
            self._close(getattr(sys, "last_value", None) is not None)


@cache
def _report_once() -> None:
    _logger.warning(
        "metrics: close() was not called; the last records are written and the sinks are closed at exit. Use "
        "`with Metrics(...)`, or call close()."
    )
