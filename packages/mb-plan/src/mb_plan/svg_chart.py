"""Standalone SVG text around the shapes of a chart, whose colours follow the light or dark mode of the viewer."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH = 760
_STYLE = """
  svg { --ink: #1f2933; --quiet: #616e7c; --line: #d5dae1; --ground: #ffffff; --track: #eceff3; --limit: #b3261e;
        --first: #3b6ea8; --second: #7fb0dc; --third: #e0a458; --fourth: #5b9a73; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6eaf0; --quiet: #9aa5b1; --line: #3a424d; --ground: #15191f; --track: #252b34; --limit: #ff8a80;
          --first: #5f97d6; --second: #a9cdf0; --third: #e8b878; --fourth: #7dbd95; } }
  .ground { fill: var(--ground); } .grid { stroke: var(--line); stroke-width: 1; } .track { fill: var(--track); }
  text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); }
  .title { font-size: 16px; font-weight: 600; } .quiet { fill: var(--quiet); font-size: 12px; }
  .limit { stroke: var(--limit); stroke-width: 2; stroke-dasharray: 6 4; } text.over { fill: var(--limit); }
  circle.over { fill: none; stroke: var(--limit); stroke-width: 1.5; }
  .first { fill: var(--first); } .second { fill: var(--second); } .third { fill: var(--third); }
  .fourth { fill: var(--fourth); }
"""


def render_svg(body: Sequence[str], *, height: int, title: str, left: int, label: str = "") -> str:
    """Return a document of `WIDTH` with a title at `left`, and the elements of `body`.

    The classes of texts are none, `quiet` and `over`; of areas `first` to `fourth`, in this order, and `track`; of
    lines `grid` and `limit`.

    Args:
        body: SVG elements.
        height: Height of the document.
        title: Title, above the chart.
        left: Position of the title.
        label: Description for screen readers; empty: the title.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{escape(label or title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
            f'<text class="title" x="{left}" y="28">{escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )


def limit_line(at: float, *, left: int, right: int) -> str:
    """Return the line of the memory of a GPU, at a height."""
    return f'<line class="limit" x1="{left}" x2="{right}" y1="{at}" y2="{at}"/>'
