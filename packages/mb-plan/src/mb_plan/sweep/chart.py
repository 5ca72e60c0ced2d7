"""Chart of the points of a sweep: predicted time of a step against memory, as standalone SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

GIB = 2**30
LABELLED = 5
"""Number of the best points that are named below the chart."""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 540, 70, 24, 60, 390
_SHOWN = 2.0
"""Largest memory in the chart, relative to that of the GPU."""
_STYLE = """
  svg { --ink: #1f2933; --quiet: #616e7c; --line: #d5dae1; --ground: #ffffff; --good: #3b6ea8; --over: #b3261e; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6eaf0; --quiet: #9aa5b1; --line: #3a424d; --ground: #15191f; --good: #7fb0dc; --over: #ff8a80; } }
  .ground { fill: var(--ground); } .grid { stroke: var(--line); stroke-width: 1; }
  text { font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--quiet); }
  .title { font-size: 16px; font-weight: 600; fill: var(--ink); } .label { fill: var(--ink); }
  .good { fill: var(--good); } .over { fill: none; stroke: var(--over); stroke-width: 1.5; }
  .limit { stroke: var(--over); stroke-width: 2; stroke-dasharray: 6 4; }
"""


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
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (seconds - self.first) / (self.last - self.first), 1)

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
    shown = [each for each in points if limit_bytes is None or each.size <= _SHOWN * limit_bytes] or points
    times = [point.seconds for point in shown]
    axes = _Axes(
        first=0.95 * min(times),
        last=1.03 * max(times),
        top=1.05 * max([point.size for point in shown] + [limit_bytes or 0]),
    )
    fitting = [point for point in shown if limit_bytes is None or point.size <= limit_bytes]
    best = sorted(fitting, key=lambda point: point.seconds)[:LABELLED]
    body = [
        f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="30">{escape(title)}</text>',
        *_grid(axes),
        *_dots(shown, fitting, best, axes),
    ]
    if limit_bytes is not None:
        y = axes.y(limit_bytes)
        body.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        body.append(f'<text x="{_LEFT + 6}" y="{y - 6}">{escape(limit)}: {limit_bytes / GIB:.0f} GiB</text>')
    lines = [f"{number}: {point.label}, {point.seconds:.3g} s" for number, point in enumerate(best, start=1)]
    if len(shown) < len(points):
        lines.append(f"{len(points) - len(shown)} points above {_SHOWN:g} times the memory are left out")
    for number, line in enumerate(lines):
        body.append(f'<text class="label" x="{_LEFT}" y="{_BOTTOM + 62 + 15 * number}">{escape(line)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            f'aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            *body,
            "</svg>\n",
        ]
    )


def _grid(axes: _Axes) -> list[str]:
    lines = [
        f'<text x="{(_LEFT + _WIDTH) // 2}" y="{_BOTTOM + 38}" text-anchor="middle">predicted step, seconds</text>',
        f'<text x="{_LEFT}" y="{_TOP - 10}">memory of the fullest rank, GiB</text>',
    ]
    for number in range(6):
        seconds = axes.first + (axes.last - axes.first) * number / 5
        size = axes.top * number / 5
        y = axes.y(size)
        lines += [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>',
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{size / GIB:,.0f}</text>',
            f'<text x="{axes.x(seconds)}" y="{_BOTTOM + 20}" text-anchor="middle">{seconds:.3g}</text>',
        ]
    return lines


def _dots(
    shown: Sequence[ChartPoint], fitting: Sequence[ChartPoint], best: Sequence[ChartPoint], axes: _Axes
) -> list[str]:
    lines = []
    for point in shown:
        kind, x, y = "good" if point in fitting else "over", axes.x(point.seconds), axes.y(point.size)
        lines.append(
            f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"><title>{escape(point.label)}</title></circle>'
        )
        if point in best:
            number = best.index(point) + 1
            lines.append(f'<text class="label" x="{x - 8}" y="{y + 4}" text-anchor="end">{number}</text>')
    return lines
