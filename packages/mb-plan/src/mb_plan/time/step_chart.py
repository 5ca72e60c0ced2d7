"""Chart of the parts of a predicted step, as standalone SVG text."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_WIDTH, _LEFT, _TOP, _ROW, _BAR = 760, 24, 64, 46, 420
_STYLE = """
  svg { --ink: #1f2933; --quiet: #616e7c; --ground: #ffffff; --bar: #3b6ea8; --track: #eceff3; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6eaf0; --quiet: #9aa5b1; --ground: #15191f; --bar: #7fb0dc; --track: #252b34; } }
  .ground { fill: var(--ground); } .bar { fill: var(--bar); } .track { fill: var(--track); }
  text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); }
  .title { font-size: 16px; font-weight: 600; } .quiet { fill: var(--quiet); font-size: 12px; }
"""


def render_step_chart(parts: Mapping[str, float], *, meanings: Mapping[str, str], title: str) -> str:
    """Render a horizontal bar for each part of a step, the largest first, with its time and share.

    Args:
        parts: Part -> seconds; together they are the step.
        meanings: Part -> description.
        title: Title of the chart.

    Returns:
        An SVG document, whose colours follow the light or dark mode of the viewer.
    """
    step = sum(parts.values())
    height = _TOP + _ROW * len(parts) + 8
    body = [
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="{_LEFT}" y="28">{escape(title)}</text>',
        f'<text class="quiet" x="{_LEFT}" y="48">{step:.3g} s</text>',
    ]
    for row, (name, seconds) in enumerate(sorted(parts.items(), key=lambda part: -part[1])):
        top, share = _TOP + _ROW * row, seconds / step
        width = max(1.0, _BAR * share)
        body += [
            f'<text x="{_LEFT}" y="{top + 14}">{escape(name)}'
            f'<tspan class="quiet" dx="8">{escape(meanings.get(name, ""))}</tspan></text>',
            f'<rect class="track" x="{_LEFT}" y="{top + 21}" width="{_BAR}" height="12" rx="3"/>',
            f'<rect class="bar" x="{_LEFT}" y="{top + 21}" width="{width:.1f}" height="12" rx="3"/>',
            f'<text class="quiet" x="{_LEFT + _BAR + 12}" y="{top + 31}">{share:.1%}, {seconds:.3g} s</text>',
        ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            f'aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            *body,
            "</svg>\n",
        ]
    )
