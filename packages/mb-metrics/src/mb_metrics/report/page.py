"""HTML report in a single file that needs no network. Its charts are drawn by uPlot, which the file contains."""

import base64
import hashlib
import json
import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from mb_metrics import names
from mb_metrics.errors import MetricsError
from mb_metrics.report.chart import Chart, chart_data, chart_html
from mb_metrics.report.chart_builder import ChartBuilder, LabeledRun, chart_marks
from mb_metrics.report.formatting import clock
from mb_metrics.report.html_tables import (
    anomalies_html,
    configuration_html,
    single_values_html,
    statistics_html,
    warnings_html,
)
from mb_metrics.report.incremental_statistics import compute_run_statistics
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.run_statistics import status_text
from mb_metrics.report.time_split import TimeSplit, split_time
from mb_metrics.report.timeline import goodput_html, timeline_html

LARGEST_PAGE = 1_000_000
"""Maximum size of a page in bytes."""
_MOST_POINTS, _FEWEST_POINTS = 400, 25


class ReportTooLargeError(MetricsError, ValueError):
    """Error raised when a page on too many runs would exceed the size limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportParts:
    """Parts of a page that change while a run continues."""

    title: str
    subtitle: str
    above: str
    """HTML above the curves: anomalies, warnings, statistics, time by activity."""
    charts: str
    """HTML of the frames of the charts."""
    below: str
    """HTML below the curves: metrics recorded once, configuration."""
    data: dict[str, object]
    """Data for the script."""

    def as_json(self) -> str:
        """Return the parts as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))


def report_html(
    runs: Sequence[RunHistory], *, now: float, largest: int = LARGEST_PAGE, live: str | None = None
) -> str:
    """Return a page on one run, or a comparison of several runs; `now` is in seconds since the epoch.

    Curves with more values than points on the page show the mean and the range of the values at each point, with a
    note. The number of points is reduced if the page would have `largest` bytes or more. The page has a
    Content-Security-Policy: it runs its own script only, and loads nothing.

    Args:
        runs: The runs, at least one.
        now: Time of the report.
        largest: Size limit in bytes.
        live: Address, of the same server, from which the page reads `report_parts` at intervals; None: it does not.

    Raises:
        ReportTooLargeError: the page would be too large even with the fewest points.
        ValueError: `runs` is empty.
    """
    subjects = _labeled(runs, now=now)
    points = _MOST_POINTS
    while points >= _FEWEST_POINTS:
        page = _page(_parts(subjects, points=points), now=now, live=live)
        size = len(page.encode())
        if size < largest:
            return page
        points = min(points // 2, int(points * largest / size))
    raise ReportTooLargeError(
        f"report_html: {len(runs)} runs exceed the page limit of {largest / 1e6:g} MB. Compare fewer runs at a time."
    )


def report_parts(runs: Sequence[RunHistory], *, now: float) -> ReportParts:
    """Return the parts of a page that change while a run continues.

    Raises:
        ValueError: `runs` is empty.
    """
    return _parts(_labeled(runs, now=now), points=_MOST_POINTS)


def write_report(runs: Sequence[RunHistory], path: str | Path, *, now: float) -> Path:
    """Write the page of `report_html` to a file, create its folder if needed, and return its path."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(report_html(runs, now=now), encoding="utf-8")
    return target


def _labeled(runs: Sequence[RunHistory], *, now: float) -> list[LabeledRun]:
    """Return the runs with a label each; the source is appended to names that are not unique."""
    if not runs:
        raise ValueError("report_html: runs is empty. A page needs at least one run. Pass one.")
    names = [run.name for run in runs]
    subjects = []
    for run in runs:
        label = run.name if names.count(run.name) == 1 else f"{run.name} ({run.source})"
        split = split_time(run)
        statistics = compute_run_statistics(run, now=now, split=split)
        subjects.append(LabeledRun(run=run, label=label, split=split, statistics=statistics))
    return subjects


def _parts(subjects: Sequence[LabeledRun], *, points: int) -> ReportParts:
    runs, labels = [subject.run for subject in subjects], [subject.label for subject in subjects]
    alone = len(runs) == 1
    builder = ChartBuilder(subjects, buckets=points)
    charts = list(builder.charts())
    drawn = [chart for chart in charts if not chart.single_values]
    return ReportParts(
        title=labels[0] if alone else f"{len(runs)} runs compared",
        subtitle=f"{status_text(subjects[0].statistics)}; {runs[0].source}" if alone else ", ".join(labels),
        above=_above(subjects),
        charts="".join(chart_html(chart) for chart in drawn)
        or "<p>No curve yet: no metric has two values to plot.</p>",
        below=_below(charts, runs, labels, left_out=builder.left_out),
        data={
            "runs": [
                {"label": subject.label, "axes": x_axes(subject.run, subject.split)} for subject in subjects
            ],
            "charts": [chart_data(chart) for chart in drawn],
            "marks": [
                mark
                for number, subject in enumerate(subjects)
                for mark in chart_marks(subject.run, subject.statistics.anomalies, number)
            ],
        },
    )


def _above(subjects: Sequence[LabeledRun]) -> str:
    alarming = times = ""
    for subject in subjects:
        statistics, label = subject.statistics, None if len(subjects) == 1 else subject.label
        problems = anomalies_html(statistics.anomalies, subject.run) + warnings_html(statistics.warnings)
        alarming += f"<h3>{escape(label)}</h3>{problems}" if label and problems else problems
        times += goodput_html(subject.split, label=label) + timeline_html(subject.run, subject.split)
    summary = statistics_html(
        [subject.statistics for subject in subjects], [subject.label for subject in subjects]
    )
    all_clear = "" if alarming else "<p>No spikes, NaN losses, stalls or warnings were found.</p>"
    sections = [
        ("Look at first", alarming),
        ("Summary", summary + all_clear),
        ("Time by activity", times),
    ]
    return "".join(_section(head, content) for head, content in sections if content)


def _below(
    charts: Sequence[Chart], runs: Sequence[RunHistory], labels: Sequence[str], *, left_out: Sequence[str]
) -> str:
    rest = f"<p><small>Not plotted: {escape(', '.join(left_out))}.</small></p>" if left_out else ""
    once = single_values_html([chart for chart in charts if chart.single_values])
    return once + rest + _section("Configuration", configuration_html(runs, labels))


def _section(head: str, content: str) -> str:
    return f"<section><h2>{head}</h2>{content}</section>"


_TOOLS = """<div class="tools" hidden>
<label>Smoothing <input id="smoothing" type="range" min="0" max="0.99" step="0.01" value="0"><output>0</output></label>
<label>x axis <select id="axis"></select></label>
<fieldset><legend>Marks</legend></fieldset>
<label><input id="outliers" type="checkbox"> ignore outliers</label>
<button id="all" type="button" disabled>show all</button>
<div id="overview" title="drag to choose the range of all charts"></div>
</div>"""


def _page(parts: ReportParts, *, now: float, live: str | None) -> str:
    script = f"{_resource('vendor/uPlot.iife.min.js')}\n{_resource('page.js')}"
    styles = _resource("vendor/uPlot.min.css") + _resource("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    connect = "'none'" if live is None else "'self'"
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'"
    )
    data = json.dumps({**parts.data, "live": live}, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="referrer" content="no-referrer">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(parts.title)}</title><style>{styles}</style></head><body>"
        f'<header><h1>{escape(parts.title)}</h1><p id="subtitle">{escape(parts.subtitle)}</p></header><main>'
        f'<div id="above">{parts.above}</div><section><h2>Curves</h2>{_TOOLS}'
        "<noscript><p>The curves need JavaScript, which the file contains.</p></noscript>"
        f'<div class="charts" id="charts">{parts.charts}</div></section><div id="below">{parts.below}</div></main>'
        f"<footer><p>Written {clock(now)} by mb-metrics. Charts: uPlot (MIT).</p></footer>"
        f'<script type="application/json" id="data">{data}</script><script>{script}</script></body></html>\n'
    )


def _resource(name: str) -> str:
    return files("mb_metrics.report").joinpath(name).read_text(encoding="utf-8")


_KNOTS = 200
_SEQ_LENGTH = re.compile(r"^\s*(?:seq_length|sequence_length):\s*(\d+)\s*$", re.MULTILINE)
_SEQ_LENGTH_SETTINGS = ("model.seq_length", "dataset.seq_length", "dataset.sequence_length")


def x_axes(run: RunHistory, split: TimeSplit) -> dict[str, list[float]]:
    """Return the columns "step", "time" and "tokens" or "samples" at some steps; values between are interpolated.

    Time is in seconds in which the run was running. "tokens" needs consumed samples and the sequence length in the
    settings. Columns that are not known are left out.
    """
    steps = _some_steps(run)
    columns = {"step": [float(step) for step in steps]}
    times = [_running_seconds(time, split) for time in _at(run.times.steps, run.times.values, steps)]
    if len(times) > 1 and all(math.isfinite(time) for time in times) and times[-1] > times[0]:
        columns["time"] = [round(time, 3) for time in times]
    samples = run.series.get(names.CONSUMED_SAMPLES)
    if samples is not None and len(samples):
        length = _seq_length(run)
        name, factor = ("samples", 1) if length is None else ("tokens", length)
        columns[name] = [factor * value for value in _at(samples.steps, samples.values, steps)]
    return columns


def _some_steps(run: RunHistory) -> list[int]:
    """Return evenly spaced recorded steps, and those next to a gap between attempts."""
    steps, every = run.times.steps, max(1, len(run.times) // _KNOTS)
    chosen = {*steps[::every], *steps[-1:]}
    for event in run.events:
        if event.starts_attempt and event.step is not None:
            index = bisect_right(steps, event.step)
            chosen |= {*steps[max(0, index - 1) : index + 1]}
    return sorted(chosen)


def _at(steps: Sequence[int], values: Sequence[float], wanted: Sequence[int]) -> list[float]:
    """Return the value at each wanted step, or at the last step before it."""
    return [values[max(0, bisect_right(steps, step) - 1)] for step in wanted]


def _running_seconds(time: float, split: TimeSplit) -> float:
    """Return the time since the start, without the time between attempts."""
    total = 0.0
    for number, span in enumerate(split.attempts):
        last = number == len(split.attempts) - 1
        if last or time <= span.end:
            return total + max(0.0, time - span.begin)
        total += span.seconds
    return math.nan


def _seq_length(run: RunHistory) -> int | None:
    if run.configuration is not None:
        settings = run.configuration.settings
        lengths = (settings.get(path) for path in _SEQ_LENGTH_SETTINGS)
        return next((value for value in lengths if isinstance(value, int) and value > 0), None)
    match = _SEQ_LENGTH.search(run.config_text or "")
    return int(match[1]) if match else None
