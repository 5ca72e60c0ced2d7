"""Find slow ranks: each times its own work, where it waits for nobody, and all compare at the log interval.

A step takes equally long on all ranks, because the fast ones wait for the slow one in its collectives. What differs is
the time of work between them, such as forward passes, and the time to read data. Both are summed up on each rank; no
collective and no wait for the device until `report`, which is one collective of eight numbers a rank.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Protocol, TypeVar

from mb_resilience.straggler_report import UNITS, RankSpeed, SpeedReport

AllGatherRows = Callable[[Sequence[float]], Sequence[Sequence[float]]]
"""Gives this rank's numbers and returns those of all ranks, by rank: `straggler_torch.RowAllGather`. Collective."""

Item = TypeVar("Item")
Given = ParamSpec("Given")
Returned = TypeVar("Returned")

STEP_FLOPS_PER_FORWARD_FLOP = 3
"""Operations of a whole step for each one of its forward pass: the backward pass has twice as many."""


class Stopwatch(Protocol):
    """Sums up the time of sections."""

    def start(self) -> None:
        """Begin a section; one that has begun and not ended is forgotten."""

    def stop(self) -> None:
        """End the section."""

    def read(self) -> float:
        """Return the seconds of all sections that ended, and begin again at 0. May wait for the device."""


class TimerSwitch(Protocol):
    """Says whether the timer is wanted; `StragglerSwitch` fits."""

    @property
    def requested(self) -> bool:
        """Whether to measure from the next report on."""


class HostStopwatch:
    """Time on the host, which is all the time there is on a CPU.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begun: float | None = None
        self._seconds = 0.0

    def start(self) -> None:
        """Begin a section."""
        self._begun = self._clock()

    def stop(self) -> None:
        """End the section."""
        if self._begun is not None:
            self._seconds += self._clock() - self._begun
            self._begun = None

    def read(self) -> float:
        """Return the seconds of all sections that ended, and begin again at 0."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def single_rank(row: Sequence[float]) -> Sequence[Sequence[float]]:
    """Exchange nothing: there is one rank."""
    return [row]


def no_device_metrics() -> Mapping[str, float]:
    """Say nothing of the device."""
    return {}


def discard(line: str) -> None:
    """Drop a line: another rank says it."""


class StragglerTimer:
    """Times the work of this rank, and compares all ranks at each report.

    The work is what runs in `with timer:`, or in functions that were made by `timed`; a section must not contain waits
    for other ranks, or all would look equally slow. Data that is read through `reading` inside of a section is timed
    apart, and the section counts from there on.

    Switched off, sections cost next to nothing. `report` is collective also then: it is where the ranks learn that the
    timer was switched. It holds no process-wide state: a new one may be made at any time, also after a restart.

    Args:
        rank: of this process.
        enabled: whether to begin at once.
        named: how many of the slowest and fastest ranks a report lists.
        exchange: brings the numbers of all ranks together.
        stopwatch: times the work; with a GPU, `straggler_torch.CudaStopwatch`.
        device: what the device says of itself, by the names of `straggler_report.UNITS`; asked at each report.
        switch: on rank 0, says whether the timer is wanted; the others follow rank 0.
        write: takes the lines of each report.
        clock: seconds, for the data.
    """

    def __init__(  # noqa: PLR0913 (each has a default that does without)
        self,
        *,
        rank: int = 0,
        enabled: bool = True,
        minmax_count: int = 1,
        all_gather: AllGatherRows = single_rank,
        stopwatch: Stopwatch | None = None,
        device: Callable[[], Mapping[str, float]] = no_device_metrics,
        switch: TimerSwitch | None = None,
        write: Callable[[str], object] = discard,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._rank = rank
        self._enabled = enabled
        self._minmax_count = minmax_count
        self._all_gather = all_gather
        self._work = HostStopwatch(clock) if stopwatch is None else stopwatch
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
        """Whether the timer measures."""
        return self._enabled

    def pause(self) -> None:
        """Leave out what comes until `resume`, such as an evaluation."""
        self._paused = True

    def resume(self) -> None:
        """Count sections again."""
        self._paused = False

    def __enter__(self) -> "StragglerTimer":
        """Begin a section. Sections are not nested."""
        if self._enabled and not self._paused:
            self._inside = True
            self._work.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the section; one that raised does not count."""
        if self._inside and kind is None:
            self._work.stop()
            self._measured = True
        self._inside = False

    def wrap_function(self, function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        """Return the same function, each call of which is a section. It keeps its signature."""

        @wraps(function)
        def section(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            with self:
                return function(*args, **kwargs)

        return section

    def wrap_iterator(self, iterator: Iterator[Item]) -> "TimedIterator[Item]":
        """Return an iterator over the same items, the waits for which are timed apart."""
        return TimedIterator(iterator, timer=self)

    def report(self, total_flops: float = 0.0, log_interval: int = 1) -> SpeedReport | None:
        """Compare the ranks since the last report, and let them switch on or off together. Collective.

        Args:
            total_flops: operations of all ranks since then, forward and backward; 0: not known. From them the speed of
                a rank is estimated as if each had made an equal part, a third of it in the timed sections.
            log_interval: steps since then.

        Returns:
            The speeds of all ranks, alike on all of them; None where nobody measured anything.
        """
        requested = self._enabled if self._switch is None else self._switch.requested
        rows = self._all_gather([float(requested), *self._row(log_interval)])
        speeds = [_speed(rank, row[1:], flops=total_flops / len(rows)) for rank, row in enumerate(rows)]
        measured = [speed for speed in speeds if speed is not None]
        found = SpeedReport(ranks=measured, minmax_count=self._minmax_count) if measured else None
        for line in found.lines() if found else ():
            self._write(line)
        self._follow(on=bool(rows[0][0]))
        return found

    def _row(self, steps: int) -> list[float]:
        """Return steps, seconds of work and of data, and what the device says; NaN for what is not known."""
        work, data = self._work.read(), self._data.read()
        measured, self._measured = self._measured, False
        read_data, self._read_data = self._read_data, False
        logged = self._device() if measured else {}
        return [
            float(steps),
            work if measured else math.nan,
            data if measured and read_data else math.nan,
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
    """An iterator whose waits a timer counts."""

    def __init__(self, iterator: Iterator[Item], *, timer: StragglerTimer) -> None:
        self._iterator = iterator
        self._timer = timer

    def __next__(self) -> Item:
        """Return the next item."""
        return self._timer._next(self._iterator)


def _speed(rank: int, row: Sequence[float], *, flops: float) -> RankSpeed | None:
    """Return the speed of a rank from its numbers; None where it measured nothing."""
    steps, work, data, *logged = row
    if math.isnan(work) or steps <= 0:
        return None
    return RankSpeed(
        rank=rank,
        work_seconds=work / steps,
        data_seconds=None if math.isnan(data) else data / steps,
        teraflops=flops / STEP_FLOPS_PER_FORWARD_FLOP / work / 1e12 if flops > 0 and work > 0 else None,
        device={name: value for name, value in zip(UNITS, logged, strict=True) if not math.isnan(value)},
    )
