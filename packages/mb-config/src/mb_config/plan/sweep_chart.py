"""Chart of the points of a sweep: predicted time of a step against memory, as standalone SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

GIB = 2**30
LABELLED = 5
"""Number of the best points with a label."""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 460, 70, 24, 60, 400
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


def render_sweep_chart(
    points: Sequence[ChartPoint], *, title: str, limit_bytes: int | None = None, limit: str = ""
) -> str:
    """Render one dot for each point; those above the memory are hollow, and the fastest that fit have labels.

    Args:
        points: The points, at least one.
        title: Title of the chart.
        limit_bytes: Memory of a GPU, shown as a line.
        limit: Label of that line.

    Returns:
        An SVG document, whose colours follow the light or dark mode of the viewer.
    """
    widest = 1.08 * max(point.seconds for point in points)
    tallest = 1.08 * max([point.size for point in points] + [limit_bytes or 0])

    def x_position(seconds: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / widest, 1)

    def y_position(size: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * size / tallest, 1)

    body = [
        f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="30">{escape(title)}</text>',
        f'<text x="{(_LEFT + _WIDTH) // 2}" y="{_BOTTOM + 42}" text-anchor="middle">predicted step, seconds</text>',
        f'<text x="{_LEFT}" y="{_TOP - 10}">memory of the fullest rank, GiB</text>',
    ]
    for number in range(6):
        x, y = x_position(widest * number / 5), y_position(tallest * number / 5)
        body += [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>',
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{tallest * number / 5 / GIB:,.0f}</text>',
            f'<text x="{x}" y="{_BOTTOM + 20}" text-anchor="middle">{widest * number / 5:.3g}</text>',
        ]
    if limit_bytes is not None:
        y = y_position(limit_bytes)
        body.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        body.append(f'<text x="{_WIDTH - _RIGHT}" y="{y - 6}" text-anchor="end">{escape(limit)}</text>')
    fitting = [point for point in points if limit_bytes is None or point.size <= limit_bytes]
    best = sorted(fitting, key=lambda point: point.seconds)[:LABELLED]
    for point in points:
        kind = "good" if point in fitting else "over"
        x, y = x_position(point.seconds), y_position(point.size)
        body.append(
            f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"><title>{escape(point.label)}</title></circle>'
        )
    last = None
    for point in sorted(best, key=lambda point: -y_position(point.size)):
        y = y_position(point.size) + 4
        y = y if last is None else min(y, last - 14)  # labels do not overlap
        last = y
        body.append(
            f'<text class="label" x="{x_position(point.seconds) + 9}" y="{y}">{escape(point.label)}</text>'
        )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            f'aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            *body,
            "</svg>\n",
        ]
    )
