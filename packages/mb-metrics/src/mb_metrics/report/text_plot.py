"""Text plot of a curve, with braille characters or in ASCII."""

from collections.abc import Sequence

from mb_metrics.report.formatting import short
from mb_metrics.report.series import Bucket, Series, envelope

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLANK = 0x2800
_LABEL = 8


def text_plot(series: Series, *, width: int, height: int, plain: bool = False) -> list[str]:
    """Return the lines of a plot of a series, scaled to its range; empty if no value is finite.

    Args:
        series: Plotted series; NaN and infinite values are omitted.
        width: Characters per line, including labels; at least 20.
        height: Number of lines, including the step axis; at least 3.
        plain: ASCII only.
    """
    across, down = (1, 1) if plain else (2, 4)
    finite = [value for _, value in series.finite()]
    if not finite:
        return []
    low, high = min(finite), max(finite)
    label = max(_LABEL, len(short(low)), len(short(high)))
    columns, rows = max(width, 20) - label - 1, max(height, 3) - 1
    grid = _DotGrid(columns * across, rows * down)
    _draw(grid, envelope(series, buckets=columns * across).buckets, low=low, high=high)
    lines = grid.plain_lines() if plain else grid.braille_lines()
    labels = {0: short(high), rows - 1: short(low)}
    drawn = [f"{labels.get(number, ''):>{label}} {line}".rstrip() for number, line in enumerate(lines)]
    first, last = f"{series.steps[0]:,}", f"{series.steps[-1]:,}"
    return [*drawn, " " * (label + 1) + first + last.rjust(columns - len(first))]


def _draw(grid: "_DotGrid", buckets: Sequence[Bucket], *, low: float, high: float) -> None:
    first, last = buckets[0].step, buckets[-1].step
    scale_x = (grid.width - 1) / (last - first) if last > first else 0.0
    scale_y = (grid.height - 1) / (high - low) if high > low else 0.0

    def row(value: float) -> int:
        return grid.height - 1 - round((value - low) * scale_y) if scale_y else grid.height // 2

    before: tuple[int, int] | None = None
    for bucket in buckets:
        mean = round((bucket.step - first) * scale_x), row(bucket.mean)
        grid.line(mean[0], row(bucket.high), row(bucket.low))
        _connect(grid, before or mean, mean)
        before = mean


def _connect(grid: "_DotGrid", begin: tuple[int, int], end: tuple[int, int]) -> None:
    last = begin[1]
    for column in range(begin[0], end[0] + 1):
        share = (column - begin[0]) / (end[0] - begin[0]) if end[0] > begin[0] else 1.0
        here = round(begin[1] + share * (end[1] - begin[1]))
        near = last + (here > last) - (here < last)
        grid.line(column, min(near, here), max(near, here))
        last = here


class _DotGrid:
    """Grid of dots with the origin in the upper left corner."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._set: set[tuple[int, int]] = set()

    def line(self, column: int, top: int, bottom: int) -> None:
        """Set the dots of a column from `top` to `bottom`."""
        self._set.update((column, row) for row in range(max(top, 0), min(bottom, self.height - 1) + 1))

    def plain_lines(self) -> list[str]:
        """Return one character per dot."""
        return [
            "".join("*" if (column, row) in self._set else " " for column in range(self.width))
            for row in range(self.height)
        ]

    def braille_lines(self) -> list[str]:
        """Return one character per two by four dots."""
        return [
            "".join(chr(_BLANK + self._cell(column, row)) for column in range(0, self.width, 2)).rstrip(
                chr(_BLANK)
            )
            for row in range(0, self.height, 4)
        ]

    def _cell(self, column: int, row: int) -> int:
        return sum(
            bit
            for down, bits in enumerate(_DOTS)
            for right, bit in enumerate(bits)
            if (column + right, row + down) in self._set
        )
