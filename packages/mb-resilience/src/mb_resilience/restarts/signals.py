"""Signals that arrive while no attempt runs in this process. Standard library only."""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mb_resilience.stops.signals import forget, restore_in_forks
from mb_schema.signal_handlers import install, put_back


class HeldSignals:
    """Context manager that records signals, and delivers them at the start of the next attempt.

    Between attempts, and in a spare rank, a signal must not end the process: the other ranks would count that as a
    fault. In a process that is forked from this one they have their previous effect. Python allows only the main thread
    to install handlers: entered in another thread, it does nothing.

    Args:
        signals: signals to record.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._signals = tuple(signals)
        self._previous: dict[int, Any] = {}
        self._received: list[int] = []

    def __enter__(self) -> "HeldSignals":
        if threading.current_thread() is threading.main_thread():
            self._previous = install(self._signals, self._record)
            restore_in_forks(self, self._signals, lambda: put_back(self._previous))
        return self

    def __exit__(self, *error: object) -> None:
        put_back(self._previous)
        forget(self)

    @contextmanager
    def delivered(self) -> Iterator[None]:
        """Restore the previous handlers within the block, and deliver the signals that were recorded before it."""
        put_back(self._previous)
        try:
            while self._received:
                signal.raise_signal(self._received.pop(0))
            yield
        finally:
            install(self._previous, self._record)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if number not in self._received:
            self._received.append(number)
