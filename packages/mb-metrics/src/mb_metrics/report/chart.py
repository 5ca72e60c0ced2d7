"""Chart of curves over steps as data for the script of the page, which draws it with uPlot."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from mb_metrics.report.formatting import duration, short
from mb_metrics.report.series import Bucket, Envelope

XAxis = Literal["step", "microseconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Curve of a chart: a line or a series of dots."""

    label: str
    colour: int
    """Index of the colour, from 0; colours repeat with different dashes."""
    shape: Envelope
    run: int = 0
    """Index of the run, whose times and tokens belong to the steps."""
    dots: bool = False
    reference: bool = False
    """If True, the curve is a constant to compare with, drawn dashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Chart of curves over steps."""

    title: str
    curves: Sequence[Curve]
    unit: str = ""
    from_zero: bool = False
    log_button: bool = True
    note: str = ""
    x: XAxis = "step"
    """Quantity of the x axis: the step, which the page can replace by tokens or time, or the time of a step."""
    smooth: bool = True
    """If False, the curves are settings, which the slider for noise does not change."""
    fill: bool = False
    """If True, the area between the first two curves is filled."""

    @property
    def known(self) -> list[Curve]:
        """Curves with at least one value."""
        return [curve for curve in self.curves if curve.shape.buckets or curve.shape.nonfinite_count]

    @property
    def single_values(self) -> bool:
        """True if no curve has two values, or a value that is not finite: there is nothing to draw."""
        return all(len(curve.shape.buckets) + curve.shape.nonfinite_count < 2 for curve in self.known)


def chart_html(chart: Chart) -> str:
    """Return the frame of a chart, without its curves."""
    unit = f' <small class="unit">{escape(chart.unit)}</small>' if chart.unit else ""
    return (
        f'<figure class="chart"><figcaption><h3>{escape(chart.title)}{unit}</h3></figcaption>'
        f'<ul class="legend"></ul><div class="plot" role="img" '
        f'aria-label="{escape(_description(chart), quote=True)}"></div>'
        f'<p class="read">{escape(_notes(chart))}</p></figure>'
    )


def chart_data(chart: Chart) -> dict[str, object]:
    """Return the data of a chart for the script, with values rounded to five digits."""
    return {
        "title": chart.title,
        "unit": chart.unit,
        "zero": chart.from_zero,
        "log": chart.log_button,
        "x": chart.x,
        "smooth": chart.smooth and chart.x == "step",
        "fill": chart.fill,
        "curves": [_curve_data(curve) for curve in chart.known],
    }


def _curve_data(curve: Curve) -> dict[str, object]:
    buckets, exact = curve.shape.buckets, curve.shape.steps_per_bucket <= 1
    data: dict[str, object] = {
        "label": curve.label,
        "run": curve.run,
        "colour": curve.colour,
        "dots": curve.dots,
        "reference": curve.reference,
        "x": [_digits(bucket.step, 9) for bucket in buckets],
        "y": [_digits(bucket.mean) for bucket in buckets],
        "bad": list(curve.shape.nonfinite_steps),
    }
    if not exact:
        data["low"] = [_digits(bucket.low) for bucket in buckets]
        data["high"] = [_digits(bucket.high) for bucket in buckets]
    return data


def _notes(chart: Chart) -> str:
    notes = [chart.note] if chart.note else []
    fullest = max(curve.shape.steps_per_bucket for curve in chart.known)
    if fullest > 1:
        notes.append(
            f"Each point represents up to {fullest:,} values: the line is their mean, the band their range."
        )
    bad = sum(curve.shape.nonfinite_count for curve in chart.known)
    if bad:
        notes.append(
            f"{bad:,} {'value was' if bad == 1 else 'values were'} NaN or infinite, marked in red at the top."
        )
    return " ".join(notes)


def _description(chart: Chart) -> str:
    parts = [
        f"{curve.label}: from {_at(curve.shape.buckets[0], chart.x)} to {_at(curve.shape.buckets[-1], chart.x)}"
        for curve in chart.known
        if curve.shape.buckets
    ]
    return f"{chart.title}. " + "; ".join(parts)


def _at(bucket: Bucket, x: XAxis) -> str:
    where = f"{x} {bucket.step:.0f}" if x == "step" else duration(bucket.step / 1e6)
    return f"{short(bucket.mean)} at {where}"


def _digits(value: float, digits: int = 5) -> float:
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
