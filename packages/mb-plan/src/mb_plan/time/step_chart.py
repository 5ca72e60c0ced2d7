"""Chart of the parts of a predicted step, as standalone SVG text."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from mb_plan.svg_chart import render_svg

_LEFT, _TOP, _ROW, _BAR = 24, 64, 46, 420


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
    body = [f'<text class="quiet" x="{_LEFT}" y="48">{step:.3g} s</text>']
    for row, (name, seconds) in enumerate(sorted(parts.items(), key=lambda part: -part[1])):
        top, share = _TOP + _ROW * row, seconds / step
        width = max(1.0, _BAR * share)
        body += [
            f'<text x="{_LEFT}" y="{top + 14}">{escape(name)}'
            f'<tspan class="quiet" dx="8">{escape(meanings.get(name, ""))}</tspan></text>',
            f'<rect class="track" x="{_LEFT}" y="{top + 21}" width="{_BAR}" height="12" rx="3"/>',
            f'<rect class="first" x="{_LEFT}" y="{top + 21}" width="{width:.1f}" height="12" rx="3"/>',
            f'<text class="quiet" x="{_LEFT + _BAR + 12}" y="{top + 31}">{share:.1%}, {seconds:.3g} s</text>',
        ]
    return render_svg(body, height=_TOP + _ROW * len(parts) + 8, title=title, left=_LEFT)
