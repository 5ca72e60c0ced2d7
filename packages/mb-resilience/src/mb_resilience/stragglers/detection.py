"""Detection of slow ranks: each rank times its work between collectives, and all ranks compare at the log interval.

A step takes equally long on all ranks, because fast ranks wait for the slow one in collectives. The time of work
between collectives, such as forward passes, and the time to read data differ. Backward passes are timed apart
(`speed_reporter`). Each rank sums them up. There is no collective and no device synchronization until `report`, which
is one collective of nine numbers per rank.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Protocol, TypeVar

from mb_resilience.stragglers.report import UNITS, RankSpeed, SpeedReport

AllGatherRows = Callable[[Sequence[float]], Sequence[Sequence[float]]]
"""Returns the rows of all ranks, by rank, given this rank's, such as `torch_timing.all_gather_row`. Collective."""

Item = TypeVar("Item")
Given = ParamSpec("Given")
Returned = TypeVar("Returned")

STEP_FLOPS_PER_FORWARD_FLOP = 3
"""Ratio of the operations of a step to those of its forward pass: the backward pass has twice as many."""


class Stopwatch(Protocol):
    """Accumulated time of sections."""

    def start(self) -> None:
        """Start a section; a section that has not ended is discarded."""

    def stop(self) -> None:
        """End the section."""

    def read(self) -> float:
        """Return the seconds of all sections that ended, and reset to 0. May synchronize with the device."""


class TimerSwitch(Protocol):
    """State in which the timer is requested, such as `StragglerSwitch`."""

    @property
    def requested(self) -> bool:
        """Whether to measure after the next report."""


class HostStopwatch:
    """Stopwatch for sections on the host, used for CPU devices.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begun: float | None = None
        self._seconds = 0.0

    def start(self) -> None:
        """Start a section."""
        self._begun = self._clock()

    def stop(self) -> None:
        """End the section."""
        if self._begun is not None:
            self._seconds += self._clock() - self._begun
            self._begun = None

    def read(self) -> float:
        """Return the seconds of all sections that ended, and reset to 0."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def single_rank(row: Sequence[float]) -> Sequence[Sequence[float]]:
    """Return the row of a single rank."""
    return [row]


def no_device_metrics() -> Mapping[str, float]:
    """Return no device telemetry."""
    return {}


def discard(line: str) -> None:
    """Discard a line, on ranks that do not log."""


class StragglerTimer:
    """Timer for the work of this rank, which compares all ranks at each report.

    Work is the code in `with timer:`, or in functions wrapped by `wrap_function`. A section must not wait for other
    ranks; otherwise all ranks appear equally slow. Data read through `wrap_iterator` inside of a section is timed
    separately, and the section restarts after the read.

    Sections cost almost nothing while the timer is off. `report` is then still collective, because it is where the
    ranks receive the state of the switch. There is no process-wide state: a new timer may be created at any time, also
    after a restart.

    Args:
        rank: rank of this process.
        enabled: initial state.
        minmax_count: number of slowest and fastest ranks in a report.
        all_gather: gathers the rows of all ranks.
        stopwatch: times the work; `torch_timing.CudaStopwatch` for a GPU.
        backward: times backward passes; None: on the host.
        device: returns device telemetry by the names of `report.UNITS`; called at each report.
        locations: host and device of each rank, for the line on the slowest one; empty: it is not named.
        switch: requested state, on rank 0; the other ranks follow rank 0.
        write: receives the lines of each report.
        clock: returns the time in seconds, for reading data.
    """

    def __init__(  # noqa: PLR0913 (each has a default that does without)
        self,
        *,
        rank: int = 0,
        enabled: bool = True,
        minmax_count: int = 1,
        all_gather: AllGatherRows = single_rank,
        stopwatch: Stopwatch | None = None,
        backward: Stopwatch | None = None,
        device: Callable[[], Mapping[str, float]] = no_device_metrics,
        locations: Sequence[str] = (),
        switch: TimerSwitch | None = None,
        write: Callable[[str], object] = discard,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._rank = rank
        self._enabled = enabled
        self._minmax_count = minmax_count
        self._all_gather = all_gather
        self._work = HostStopwatch(clock) if stopwatch is None else stopwatch
        self._backward = HostStopwatch(clock) if backward is None else backward
        self._in_backward = self._measured_backward = False
        self._locations = locations
        self._data = HostStopwatch(clock)
        self._device = device
        self._switch = switch
        self._write = write
        self._paused = False
        self._inside = False
        self._measured = False
        self._read_data = False

    @property
    def enabled(self) -> bool:
        """Whether the timer is on."""
        return self._enabled

    def pause(self) -> None:
        """Ignore sections until `resume`, such as those of an evaluation."""
        self._paused = True

    def resume(self) -> None:
        """Count sections again."""
        self._paused = False

    def __enter__(self) -> "StragglerTimer":
        """Start a section. Sections are not nested."""
        if self._enabled and not self._paused:
            self._inside = True
            self._work.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the section; a section that raises is not counted."""
        if self._inside and kind is None:
            self._work.stop()
            self._measured = True
        self._inside = False

    def start_backward(self) -> None:
        """Start a backward pass, which is timed apart from the sections."""
        self._in_backward = self._enabled and not self._paused
        if self._in_backward:
            self._backward.start()

    def stop_backward(self) -> None:
        """End the backward pass."""
        if self._in_backward:
            self._backward.stop()
            self._measured_backward = True
        self._in_backward = False

    def wrap_function(self, function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        """Return a function with the same signature that times each call as a section."""

        @wraps(function)
        def section(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            with self:
                return function(*args, **kwargs)

        return section

    def wrap_iterator(self, iterator: Iterator[Item]) -> "TimedIterator[Item]":
        """Return an iterator over the same items that times the wait for each item separately."""
        return TimedIterator(iterator, timer=self)

    def report(self, total_flops: float = 0.0, log_interval: int = 1) -> SpeedReport | None:
        """Compare the ranks since the last report, and apply the state of the switch on all ranks. Collective.

        Args:
            total_flops: operations of all ranks since the last report, forward and backward; 0 if unknown. The speed of
            a
                rank is estimated from an equal share per rank, with a third of it in the timed sections.
            log_interval: steps since the last report.

        Returns:
            Speeds of all ranks, identical on all ranks; None if no rank has measurements.
        """
        requested = self._enabled if self._switch is None else self._switch.requested
        rows = self._all_gather([float(requested), *self._row(log_interval)])
        speeds = [_speed(rank, row[1:], flops=total_flops / len(rows)) for rank, row in enumerate(rows)]
        measured = [speed for speed in speeds if speed is not None]
        report = None
        if measured:
            report = SpeedReport(ranks=measured, minmax_count=self._minmax_count, locations=self._locations)
        for line in report.lines() if report else ():
            self._write(line)
        self._follow(on=bool(rows[0][0]))
        return report

    def _row(self, steps: int) -> list[float]:
        """Return steps, seconds of work, data and backward passes, and device telemetry; NaN for unknown values."""
        work, data = self._work.read(), self._data.read()
        measured, self._measured = self._measured, False
        read_data, self._read_data = self._read_data, False
        backward = self._backward.read()
        has_backward, self._measured_backward = self._measured_backward, False
        logged = self._device() if measured else {}
        return [
            float(steps),
            work if measured else math.nan,
            data if measured and read_data else math.nan,
            backward if measured and has_backward else math.nan,
            *(logged.get(name, math.nan) for name in UNITS),
        ]

    def _follow(self, *, on: bool) -> None:
        if on != self._enabled:
            self._enabled = on
            self._write(f"speed of ranks: measuring is switched {'on' if on else 'off'}")

    def _next(self, iterator: Iterator[Item]) -> Item:
        if not self._enabled or self._paused:
            return next(iterator)
        self._data.start()
        item = next(iterator)
        self._data.stop()
        self._read_data = True
        if self._inside:
            self._work.start()
        return item


class TimedIterator(Iterator[Item]):
    """Iterator that times the wait for each item."""

    def __init__(self, iterator: Iterator[Item], *, timer: StragglerTimer) -> None:
        self._iterator = iterator
        self._timer = timer

    def __next__(self) -> Item:
        """Return the next item."""
        return self._timer._next(self._iterator)


def _speed(rank: int, row: Sequence[float], *, flops: float) -> RankSpeed | None:
    """Return the speed of a rank from its row; None if it has no measurements."""
    steps, work, data, backward, *logged = row
    if math.isnan(work) or steps <= 0:
        return None
    return RankSpeed(
        rank=rank,
        work_seconds=work / steps,
        data_seconds=None if math.isnan(data) else data / steps,
        backward_seconds=None if math.isnan(backward) else backward / steps,
        teraflops=flops / STEP_FLOPS_PER_FORWARD_FLOP / work / 1e12 if flops > 0 and work > 0 else None,
        device={name: value for name, value in zip(UNITS, logged, strict=True) if not math.isnan(value)},
    )
