"""The time that steps take, with what is not a step left out, by the clock of the host or of the device."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Protocol


class Timer(Protocol):
    """Marks moments, and reads the seconds between two of them later."""

    def mark(self) -> Any:
        """Mark this moment, without waiting."""

    def ready(self, mark: Any) -> bool:
        """Return whether the moment has been reached, without waiting."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks; waits until the second has been reached."""


class HostTimer:
    """Marks are times of the host. `clock` returns seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def mark(self) -> float:
        """Read the clock."""
        return self._clock()

    def ready(self, mark: float) -> bool:
        """Return True: the host has reached its own past."""
        return True

    def seconds(self, begin: float, end: float) -> float:
        """Return the difference."""
        return end - begin


class DeviceTimer:
    """Marks are CUDA events where CUDA is in use, and times of the host elsewhere.

    Between log intervals the host only queues work and runs ahead of the device: the time between two of its steps is
    that of launching kernels. An event is reached when the device has finished what was queued before it, so that
    the time between two events is that of the work. From a mark made before CUDA was in use, host times count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def mark(self) -> tuple[float, Any]:
        """Read the host's clock, and record an event on the current stream of the current device."""
        return self._clock(), import_module("mb_metrics.tensors").timing_event() if _uses_cuda() else None

    def ready(self, mark: tuple[float, Any]) -> bool:
        """Return whether the device has reached the event."""
        return mark[1] is None or bool(mark[1].query())

    def seconds(self, begin: tuple[float, Any], end: tuple[float, Any]) -> float:
        """Return the device's time between two events, waiting for the second."""
        if begin[1] is None or end[1] is None:
            return end[0] - begin[0]
        end[1].synchronize()
        return float(begin[1].elapsed_time(end[1])) / 1000


def _uses_cuda() -> bool:
    """Return whether torch was imported and has initialised a GPU. Imports nothing, initialises nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.is_available()


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """One step between two marks, with the pauses in it."""

    timer: Timer
    begin: Any
    end: Any
    pauses: tuple[tuple[Any, Any], ...]

    def ready(self) -> bool:
        """Return whether `seconds` would return without waiting for the device."""
        return self.timer.ready(self.end)

    @cached_property
    def seconds(self) -> float:
        """Seconds without the pauses; waits for the end of the step."""
        whole = self.timer.seconds(self.begin, self.end)
        return whole - sum(self.timer.seconds(begin, end) for begin, end in self.pauses)


class StepClock:
    """Laps from step to step, without the pauses."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._begin = timer.mark()
        self._pauses: list[tuple[Any, Any]] = []

    def restart(self) -> None:
        """Begin the next lap now."""
        self._begin = self._timer.mark()
        self._pauses = []

    def end_step(self) -> StepTiming:
        """End the lap now and begin the next."""
        end = self._timer.mark()
        timing = StepTiming(timer=self._timer, begin=self._begin, end=end, pauses=tuple(self._pauses))
        self._begin, self._pauses = end, []
        return timing

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time in this block out of the lap."""
        begin = self._timer.mark()
        try:
            yield
        finally:
            self._pauses.append((begin, self._timer.mark()))
