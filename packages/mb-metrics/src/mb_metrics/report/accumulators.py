"""Statistics of series that grow: each update reads the new values alone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from mb_metrics.report.series import Series, mean_of

_MOST_INSERTED = 64
"""Values that are inserted one by one; more of them are sorted together."""


class SortedValues:
    """Values in ascending order, with their mean, median and percentiles."""

    def __init__(self) -> None:
        self._values = array("d")
        self._sum = self._rest = 0.0

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        return iter(self._values)

    def add(self, values: Sequence[float]) -> None:
        """Add values, none of which is NaN."""
        if len(values) > _MOST_INSERTED:
            self._values = array("d", sorted([*self._values, *values]))
        else:
            for value in values:
                insort(self._values, value)
        for value in values:  # Neumaier's compensated sum
            total = self._sum + value
            large, small = (self._sum, value) if abs(self._sum) >= abs(value) else (value, self._sum)
            self._rest += (large - total) + small
            self._sum = total

    @property
    def mean(self) -> float:
        """Mean; there is a value."""
        return (self._sum + self._rest) / len(self._values)

    @property
    def median(self) -> float | None:
        """Median; None without a value."""
        return self.percentile(50) if self._values else None

    @property
    def highest(self) -> float:
        """Largest value; there is one."""
        return self._values[-1]

    def percentile(self, percent: int) -> float:
        """Return a percentile as `statistics.quantiles(method="inclusive")`; there is a value."""
        below, part = divmod((len(self._values) - 1) * percent, 100)
        first = self._values[below]
        return first if not part else (first * (100 - part) + self._values[below + 1] * part) / 100


class Accumulator(ABC):
    """State over a series, read once; it starts again for another series, and for one that was cut."""

    def __init__(self) -> None:
        self._series: Series | None = None
        self._read = self._cuts = 0

    def update(self, series: Series) -> None:
        """Read the values that were added since the last call."""
        if series is not self._series or series.cuts != self._cuts:
            self._reset()
            self._series, self._read, self._cuts = series, 0, series.cuts
        self._add(series.since(self._read))
        self._read = len(series)

    @abstractmethod
    def _reset(self) -> None:
        """Forget all values."""

    @abstractmethod
    def _add(self, new: Iterable[tuple[int, float]]) -> None:
        """Add steps and values."""


class FiniteValues(Accumulator):
    """Finite values in ascending order."""

    def _reset(self) -> None:
        self.sorted = SortedValues()

    def _add(self, new: Iterable[tuple[int, float]]) -> None:
        self.sorted.add([value for _, value in new if math.isfinite(value)])


class Extremes(Accumulator):
    """First, lowest and highest finite value; None without one."""

    def _reset(self) -> None:
        self.first: float | None = None
        self.lowest: tuple[float, int] | None = None
        """Value and its first step."""
        self.highest: float | None = None

    def _add(self, new: Iterable[tuple[int, float]]) -> None:
        for step, value in new:
            if not math.isfinite(value):
                continue
            if self.first is None or self.lowest is None or self.highest is None:
                self.first, self.lowest, self.highest = value, (value, step), value
            elif value < self.lowest[0]:
                self.lowest = value, step
            elif value > self.highest:
                self.highest = value


class Ratios(Accumulator):
    """Quotients of two metrics at each step, if both have the same steps."""

    def __init__(self) -> None:
        super().__init__()
        self._divisor = Series()
        self._divisor_cuts = 0

    def of(self, series: Series, divisor: Series) -> SortedValues | None:
        """Return the quotients whose terms are finite and whose divisor is positive; None if the steps differ."""
        if len(series) != len(divisor):
            return None
        if divisor is not self._divisor or divisor.cuts != self._divisor_cuts:
            self._divisor, self._divisor_cuts, self._series = divisor, divisor.cuts, None
        self.update(series)
        return self.sorted if self.same_steps else None

    def _reset(self) -> None:
        self.sorted, self.same_steps = SortedValues(), True

    def _add(self, new: Iterable[tuple[int, float]]) -> None:
        quotients = []
        for (step, value), (of_divisor, divisor) in zip(new, self._divisor.since(self._read), strict=True):
            self.same_steps &= step == of_divisor
            if math.isfinite(value) and math.isfinite(divisor) and divisor > 0:
                quotients.append(value / divisor)
        self.sorted.add(quotients)


class Spikes(Accumulator):
    """Values that exceed the usual value by a ratio, and by a number of usual differences of two consecutive values.

    The usual value and the usual difference are running averages, into which an unusual value enters only in part.
    """

    WARM_UP = 30
    """Values before the first one that can be a spike."""
    LEVEL_STEPS, NOISE_STEPS = 20, 50
    """Values over which the usual value is averaged, and the usual difference of two consecutive values."""

    def __init__(self, *, deviations: float, ratio: float) -> None:
        super().__init__()
        self._deviations, self._ratio = deviations, ratio

    def _reset(self) -> None:
        self.found: list[tuple[int, float, float]] = []
        """Step, value and usual value of each spike."""
        self._first: list[float] = []
        self._usual = self._noise = self._previous = 0.0

    def _add(self, new: Iterable[tuple[int, float]]) -> None:
        first = self._first
        for step, value in new:
            if not math.isfinite(value):
                continue
            if len(first) < self.WARM_UP:
                first.append(value)
                self._usual, self._previous = mean_of(first[-10:]), value
                differences = [abs(after - before) for before, after in pairwise(first)]
                self._noise = median(differences) if differences else 0.0
                continue
            above = value - self._usual
            far = above > self._deviations * self._noise
            if far and value > self._usual + (self._ratio - 1) * abs(self._usual):
                self.found.append((step, value, self._usual))
            limit = 3 * self._noise + 1e-12
            # without a limit below: a loss may fall quickly at first
            self._usual += min(above, limit) / self.LEVEL_STEPS
            self._noise += (min(abs(value - self._previous), limit) - self._noise) / self.NOISE_STEPS
            self._previous = value


class SlowSteps(Accumulator):
    """Steps that took longer than a limit, which may change."""

    def __init__(self) -> None:
        super().__init__()
        self._floor = math.inf

    def above(self, times: Series, limit: float) -> list[tuple[int, float, float]]:
        """Return step, begin and end of each step, recorded next to the previous one, that took longer than a limit."""
        if not self._floor <= limit <= 4 * self._floor:
            self._floor, self._series = limit / 2, None
        self.update(times)
        return [each for each in self._slow if each[2] - each[1] > limit]

    def _reset(self) -> None:
        self._slow: list[tuple[int, float, float]] = []
        self._last: tuple[int, float] | None = None

    def _add(self, new: Iterable[tuple[int, float]]) -> None:
        for step, time in new:
            if self._last is not None and step == self._last[0] + 1 and time - self._last[1] > self._floor:
                self._slow.append((step, self._last[1], time))
            self._last = step, time
