"""Chart of curves over steps: scalable SVG for the curves, HTML for the text, which must not be stretched."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from mb_metrics.report.formatting import edge_class, short, ticks
from mb_metrics.report.series import Bucket, Envelope

WIDTH, HEIGHT = 1000.0, 300.0
COLOURS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Curve of a chart: a line or a series of dots."""

    label: str
    colour: int
    """Index of the colour, from 0; colours repeat with different dashes."""
    shape: Envelope
    dots: bool = False

    @property
    def look(self) -> str:
        """CSS classes of the colour and the dashes."""
        return f"c{self.colour % COLOURS} d{self.colour // COLOURS % 3}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Chart of curves over steps."""

    title: str
    curves: Sequence[Curve]
    unit: str = ""
    from_zero: bool = False
    log_button: bool = True
    note: str = ""
    x_name: str = "step"
    legend: bool = False
    """If True, show the legend even for a single curve."""
    x_format: Callable[[float], str] = short
    """Function that formats a position on the x axis."""


@dataclass(frozen=True, slots=True)
class _PlotArea:
    """Bounds of a chart in data coordinates."""

    left: float
    right: float
    low: float
    high: float

    def x(self, step: float) -> float:
        return WIDTH * (step - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        return HEIGHT * (1 - (value - self.low) / (self.high - self.low))


def chart_html(chart: Chart) -> str:
    """Return the HTML of a chart; empty if no curve has a value."""
    curves = [curve for curve in chart.curves if curve.shape.buckets or curve.shape.nonfinite_count]
    if not curves:
        return ""
    frame = _frame(chart, curves)
    levels, positions = ticks(frame.low, frame.high), ticks(frame.left, frame.right, most=6, whole=True)
    grid = "".join(f"M0 {frame.y(level):.1f}H{WIDTH:.0f}" for level in levels)
    shapes = "".join(_shape(curve, frame) for curve in curves)
    ys = "".join(f'<span style="top:{frame.y(level) / HEIGHT:.2%}">{short(level)}</span>' for level in levels)
    xs = "".join(
        f'<span{edge_class(frame.x(position) / WIDTH)} style="left:{frame.x(position) / WIDTH:.2%}">'
        f"{chart.x_format(position)}</span>"
        for position in positions
    )
    unit = f' <small class="unit">{escape(chart.unit)}</small>' if chart.unit else ""
    return (
        f'<figure class="chart"{" data-log" if chart.log_button else ""}>'
        f"<figcaption><h3>{escape(chart.title)}{unit}</h3></figcaption>{_legend(curves, chart.legend)}"
        f'<div class="frame"><div class="ys" aria-hidden="true">{ys}</div>'
        f'<div class="plot"><svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(_description(chart, curves), quote=True)}"><path class="grid" d="{grid}"/>'
        f"{shapes}</svg></div>"
        f'<div class="xs" aria-hidden="true">{xs}</div></div>'
        f'<p class="read">{escape(_notes(chart, curves))}</p>'
        f'<script type="application/json">{_data(chart, curves, frame)}</script></figure>'
    )


def _frame(chart: Chart, curves: Sequence[Curve]) -> _PlotArea:
    buckets = [bucket for curve in curves for bucket in curve.shape.buckets]
    steps = [bucket.step for bucket in buckets] + [
        step for curve in curves for step in curve.shape.nonfinite_steps
    ]
    low = min((bucket.low for bucket in buckets), default=0.0)
    high = max((bucket.high for bucket in buckets), default=1.0)
    if chart.from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    bottom = low if chart.from_zero and low == 0 else low - margin
    left, right = min(steps), max(steps)
    if left == right:  # a single step is plotted in the middle
        left, right = left - 1, right + 1
    return _PlotArea(left, right, bottom, high + margin)


def _shape(curve: Curve, frame: _PlotArea) -> str:
    buckets = curve.shape.buckets
    look = curve.look
    marks = "".join(f"M{frame.x(step):.1f} 0v16" for step in curve.shape.nonfinite_steps)
    bad = f'<path class="bad" d="{marks}"/>' if marks else ""
    if curve.dots or len(buckets) == 1:
        dots = "".join(f"M{frame.x(one.step):.1f} {frame.y(one.mean):.1f}h0" for one in buckets)
        line = f"M{_points(buckets, frame)}" if curve.dots and len(buckets) > 1 else ""
        return f'<path class="line thin {look}" d="{line}"/><path class="dots {look}" d="{dots}"/>{bad}'
    band = ""
    if curve.shape.steps_per_bucket > 1:
        upper = "L".join(f"{frame.x(one.step):.1f} {frame.y(one.high):.1f}" for one in buckets)
        lower = "L".join(f"{frame.x(one.step):.1f} {frame.y(one.low):.1f}" for one in reversed(buckets))
        band = f'<path class="band {look}" d="M{upper}L{lower}Z"/>'
    return f'{band}<path class="line {look}" d="M{_points(buckets, frame)}"/>{bad}'


def _points(buckets: Sequence[Bucket], frame: _PlotArea) -> str:
    return "L".join(f"{frame.x(one.step):.1f} {frame.y(one.mean):.1f}" for one in buckets)


def _legend(curves: Sequence[Curve], always: bool) -> str:
    if len(curves) < 2 and not always:
        return ""
    items = "".join(
        f'<li class="{curve.look}{" dot" if curve.dots else ""}">{escape(curve.label)}</li>'
        for curve in curves
    )
    return f'<ul class="legend">{items}</ul>'


def _notes(chart: Chart, curves: Sequence[Curve]) -> str:
    notes = [chart.note] if chart.note else []
    fullest = max(curve.shape.steps_per_bucket for curve in curves)
    if fullest > 1:
        notes.append(
            f"Each point represents up to {fullest:,} values: the line is their mean, the band their range."
        )
    bad = sum(curve.shape.nonfinite_count for curve in curves)
    if bad:
        notes.append(
            f"{bad:,} {'value was' if bad == 1 else 'values were'} NaN or infinite, marked in red at the top."
        )
    return " ".join(notes)


def _description(chart: Chart, curves: Sequence[Curve]) -> str:
    parts = []
    for curve in curves:
        buckets = curve.shape.buckets
        if buckets:
            parts.append(
                f"{curve.label}: from {short(buckets[0].mean)} at {chart.x_name} {buckets[0].step:.0f} "
                f"to {short(buckets[-1].mean)} at {chart.x_name} {buckets[-1].step:.0f}"
            )
    return f"{chart.title}. " + "; ".join(parts)


def _data(chart: Chart, curves: Sequence[Curve], frame: _PlotArea) -> str:
    """Return the data for the script as JSON: bounds and values, rounded to five digits."""
    data = {
        "x": chart.x_name,
        "frame": [_digits(edge) for edge in (frame.left, frame.right, frame.low, frame.high)],
        "curves": [
            {
                "label": curve.label,
                "look": curve.look,
                "dots": curve.dots,
                "points": [
                    _point(bucket, exact=curve.shape.steps_per_bucket <= 1) for bucket in curve.shape.buckets
                ],
                "bad": list(curve.shape.nonfinite_steps),
            }
            for curve in curves
        ],
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _point(bucket: Bucket, *, exact: bool) -> list[float]:
    values = [bucket.mean] if exact else [bucket.mean, bucket.low, bucket.high]
    return [_digits(bucket.step, 9), *map(_digits, values)]


def _digits(value: float, digits: int = 5) -> float:
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
