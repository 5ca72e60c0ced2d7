"""Metrics over steps in columns, which hold millions of steps without an object per step."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Series:
    """Values of one metric over ascending steps."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    cuts: int = 0
    """Number of times that values were removed."""

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self.steps, self.values, strict=True)

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, float]]) -> Series:
        """Return a series of ascending steps and their values."""
        series = cls()
        for step, value in pairs:
            series.append(step, value)
        return series

    @property
    def last(self) -> float | None:
        """Value of the last step; None before the first."""
        return self.values[-1] if self.values else None

    def append(self, step: int, value: float) -> None:
        """Add the value of a later step."""
        self.steps.append(step)
        self.values.append(value)

    def cut_from(self, step: int) -> None:
        """Remove the values of this step and later steps."""
        end = bisect_left(self.steps, step)
        self.cuts += end < len(self.steps)
        del self.steps[end:], self.values[end:]

    def since(self, index: int) -> Iterator[tuple[int, float]]:
        """Yield steps and values from a position on."""
        return zip(self.steps[index:], self.values[index:], strict=True)

    def finite(self) -> Iterator[tuple[int, float]]:
        """Yield the steps with finite values."""
        return ((step, value) for step, value in self if math.isfinite(value))


@dataclass(frozen=True, slots=True)
class Bucket:
    """Statistics of the finite values of neighbouring steps."""

    step: float
    """Mean of the steps."""
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Downsampled series; every finite value is included in the `low` and `high` of a bucket."""

    buckets: tuple[Bucket, ...]
    nonfinite_steps: tuple[int, ...]
    """First step with a NaN or infinite value in each bucket that has one."""
    nonfinite_count: int
    steps_per_bucket: int
    """Maximum number of values in a bucket; 1: the values are exact."""


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of finite values, of any size: their sum may be larger than a float."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def envelope(series: Series, *, buckets: int) -> Envelope:
    """Downsample a series to `buckets` equal parts of its step range; a shorter series keeps every value.

    Each bucket contains the minimum, the maximum and the mean of its finite values; a bucket without finite values is
    omitted.
    """
    if not len(series):
        return Envelope(buckets=(), nonfinite_steps=(), nonfinite_count=0, steps_per_bucket=0)
    first, span = series.steps[0], series.steps[-1] - series.steps[0] + 1
    exact = len(series) <= buckets
    done: list[Bucket] = []
    nonfinite: list[int] = []
    count = fullest = 0
    for part in _parts(series, 1 if exact else span / buckets, first=first, exact=exact):
        finite = [(step, value) for step, value in part if math.isfinite(value)]
        fullest = max(fullest, len(part))
        if len(finite) < len(part):
            count += len(part) - len(finite)
            nonfinite.append(next(step for step, value in part if not math.isfinite(value)))
        if finite:
            values = [value for _, value in finite]
            middle = sum(step for step, _ in finite) / len(finite)
            done.append(
                Bucket(
                    middle,
                    mean_of(values) if len(values) > 1 else values[0],
                    min(values),
                    max(values),
                )
            )
    return Envelope(
        buckets=tuple(done),
        nonfinite_steps=tuple(nonfinite),
        nonfinite_count=count,
        steps_per_bucket=fullest,
    )


def _parts(series: Series, width: float, *, first: int, exact: bool) -> Iterator[list[tuple[int, float]]]:
    part: list[tuple[int, float]] = []
    end = first + width
    for step, value in series:
        if part and (exact or step >= end):
            yield part
            part = []
            while step >= end and not exact:
                end += width
        part.append((step, value))
    yield part
