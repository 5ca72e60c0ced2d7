"""Chart of the points of a sweep: predicted time of a step against memory, as standalone SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from mb_plan.svg_chart import WIDTH, limit_line, render_svg

GIB = 2**30
LABELLED = 5
"""Number of the best points that are named below the chart."""
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 540, 70, WIDTH - 24, 60, 390
_SHOWN = 2.0
"""Largest memory in the chart, relative to that of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A point of a sweep."""

    label: str
    seconds: float
    """Predicted time of a step."""
    size: float
    """Bytes on the fullest rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """Ranges of the chart, and positions in it."""

    first: float
    last: float
    top: float

    def x(self, seconds: float) -> float:
        """Return the horizontal position of a time."""
        return round(_LEFT + (_RIGHT - _LEFT) * (seconds - self.first) / (self.last - self.first), 1)

    def y(self, size: float) -> float:
        """Return the vertical position of a memory size."""
        return round(_BOTTOM - (_BOTTOM - _TOP) * size / self.top, 1)


def render_sweep_chart(
    points: Sequence[ChartPoint], *, title: str, limit_bytes: int | None = None, limit: str = ""
) -> str:
    """Render a dot for each point: filled if it fits the memory, and numbered if it is one of the fastest that fit.

    Points of more than twice the memory are left out, and counted below the chart.

    Args:
        points: The points, at least one.
        title: Title of the chart.
        limit_bytes: Memory of a GPU, shown as a line.
        limit: Label of that line.

    Returns:
        An SVG document, whose colours follow the light or dark mode of the viewer.
    """
    shown = [point for point in points if limit_bytes is None or point.size <= _SHOWN * limit_bytes] or points
    times = [point.seconds for point in shown]
    axes = _Axes(
        first=0.95 * min(times),
        last=1.03 * max(times),
        top=1.05 * max([point.size for point in shown] + [limit_bytes or 0]),
    )
    fitting = [point for point in shown if limit_bytes is None or point.size <= limit_bytes]
    best = sorted(fitting, key=lambda point: point.seconds)[:LABELLED]
    body = [*_grid(axes), *_dots(shown, fitting, best, axes)]
    if limit_bytes is not None:
        y = axes.y(limit_bytes)
        body.append(limit_line(y, left=_LEFT, right=_RIGHT))
        name = f"{limit}: {limit_bytes / GIB:.0f} GiB"
        body.append(f'<text class="quiet" x="{_LEFT + 6}" y="{y - 6}">{escape(name)}</text>')
    lines = [f"{number}: {point.label}, {point.seconds:.3g} s" for number, point in enumerate(best, start=1)]
    if len(shown) < len(points):
        lines.append(f"{len(points) - len(shown)} points above {_SHOWN:g} times the memory are left out")
    for number, line in enumerate(lines):
        body.append(f'<text x="{_LEFT}" y="{_BOTTOM + 62 + 15 * number}">{escape(line)}</text>')
    return render_svg(body, height=_HEIGHT, title=title, left=_LEFT)


def _grid(axes: _Axes) -> list[str]:
    lines = [
        f'<text class="quiet" x="{(_LEFT + WIDTH) // 2}" y="{_BOTTOM + 38}" text-anchor="middle">'
        "predicted step, seconds</text>",
        f'<text class="quiet" x="{_LEFT}" y="{_TOP - 10}">memory of the fullest rank, GiB</text>',
    ]
    for number in range(6):
        seconds = axes.first + (axes.last - axes.first) * number / 5
        size = axes.top * number / 5
        y = axes.y(size)
        lines += [
            f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>',
            f'<text class="quiet" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{size / GIB:,.0f}</text>',
            f'<text class="quiet" x="{axes.x(seconds)}" y="{_BOTTOM + 20}" text-anchor="middle">'
            f"{seconds:.3g}</text>",
        ]
    return lines


def _dots(
    shown: Sequence[ChartPoint], fitting: Sequence[ChartPoint], best: Sequence[ChartPoint], axes: _Axes
) -> list[str]:
    lines = []
    for point in shown:
        kind, x, y = "first" if point in fitting else "over", axes.x(point.seconds), axes.y(point.size)
        lines.append(
            f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"><title>{escape(point.label)}</title></circle>'
        )
        if point in best:
            number = best.index(point) + 1
            lines.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{number}</text>')
    return lines
