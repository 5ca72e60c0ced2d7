"""Chart of the memory of each pipeline stage, as standalone SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mb_plan.memory.resource_plan import ResourcePlan, StagePlan
from mb_plan.svg_chart import WIDTH, limit_line, render_svg

KINDS = {"weights": "first", "gradients": "second", "optimizer": "third", "activations": "fourth"}
"""Segments of a bar, from the bottom, with their colours."""

GIB = 2**30
_LEFT, _RIGHT, _TOP, _PLOT = 64, WIDTH - 24, 84, 300
_MAX_LABELS = 16


def render_memory_chart(
    plan: ResourcePlan, *, title: str = "Memory per GPU", limit_bytes: int | None = None, limit: str = ""
) -> str:
    """Render a stacked bar for each pipeline stage: the peak memory of one of its ranks, in GiB.

    Args:
        plan: The plan. Parts that are not counted are omitted from the bars and listed in the caption.
        title: Title of the chart.
        limit_bytes: Memory of a GPU, shown as a horizontal line.
        limit: Label of that line.

    Returns:
        An SVG document, whose colours follow the light or dark mode of the viewer.
    """
    tallest = max([_height(stage) for stage in plan.stages] + [limit_bytes or 0]) / GIB
    step = _tick(tallest)
    top = step * (int(tallest / step) + 1)
    bottom = _TOP + _PLOT

    def y_position(gib: float) -> float:
        return round(bottom - _PLOT * gib / top, 1)

    body = [
        *_legend(),
        *_grid(step, [y_position(step * number) for number in range(round(top / step) + 1)]),
        *_bars(plan.stages, top, bottom),
    ]
    if limit_bytes is not None:
        at = y_position(limit_bytes / GIB)
        body.append(limit_line(at, left=_LEFT, right=_RIGHT))
        name = f"{limit} {limit_bytes / GIB:.0f} GiB".strip()
        body.append(f'<text class="over" x="{_RIGHT}" y="{at - 6}" text-anchor="end">{escape(name)}</text>')
    body.append(f'<text class="quiet" x="{_LEFT}" y="{bottom + 50}">{escape(_caption(plan))}</text>')
    return render_svg(body, height=bottom + 64, title=title, left=_LEFT, label=f"{title}: {_caption(plan)}")


def _height(stage: StagePlan) -> int:
    return sum(getattr(stage.rank_bytes, kind) or 0 for kind in KINDS)


def _tick(tallest: float) -> float:
    """Return a round distance between grid lines that results in about five lines."""
    step = 0.001
    for factor in (2, 2.5, 2) * 8:
        if tallest / step <= 6:
            return step
        step *= factor
    return step


def _legend() -> list[str]:
    lines = []
    for number, (kind, colour) in enumerate(KINDS.items()):
        left = _LEFT + 130 * number
        lines.append(f'<rect class="{colour}" x="{left}" y="46" width="12" height="12" rx="2"/>')
        lines.append(f'<text x="{left + 18}" y="57">{kind}</text>')
    return lines


def _grid(step: float, heights: Sequence[float]) -> list[str]:
    lines = []
    for number, at in enumerate(heights):
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{at}" y2="{at}"/>')
        label = f"{step * number:g}"
        lines.append(f'<text class="quiet" x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{label}</text>')
    lines.append(f'<text class="quiet" x="{_LEFT - 8}" y="{_TOP - 12}" text-anchor="end">GiB</text>')
    return lines


def _bars(stages: Sequence[StagePlan], top: float, bottom: int) -> list[str]:
    room = (_RIGHT - _LEFT) / len(stages)
    width = min(72.0, room * 0.7)
    every = -(-len(stages) // _MAX_LABELS)
    lines = []
    for number, stage in enumerate(stages):
        left = _LEFT + room * number + (room - width) / 2
        at, middle = float(bottom), round(left + width / 2, 1)
        for kind, colour in KINDS.items():
            size = (getattr(stage.rank_bytes, kind) or 0) / GIB
            height = _PLOT * size / top
            at -= height
            lines.append(
                f'<rect class="{colour}" x="{left:.1f}" y="{at:.1f}" width="{width:.1f}" height="{height:.1f}">'
                f"<title>stage {number}, {kind}: {size:.2f} GiB</title></rect>"
            )
        if number % every == 0:
            amount = f"{_height(stage) / GIB:.3g}"
            lines.append(f'<text x="{middle}" y="{at - 6:.1f}" text-anchor="middle">{amount}</text>')
            lines.append(
                f'<text class="quiet" x="{middle}" y="{bottom + 18}" text-anchor="middle">{number}</text>'
            )
    return lines


def _caption(plan: ResourcePlan) -> str:
    missing = [kind for kind in KINDS if getattr(plan.peak.rank_bytes, kind) is None]
    stages = f"pipeline stages 0 to {len(plan.stages) - 1}" if len(plan.stages) > 1 else "one pipeline stage"
    return stages + (f"; not counted: {', '.join(missing)}" if missing else "")
