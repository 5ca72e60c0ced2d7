"""HTML report in a single file that needs no network and works without scripts."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from mb_metrics.errors import MetricsError
from mb_metrics.report.chart import chart_html
from mb_metrics.report.chart_builder import ChartBuilder, LabeledRun
from mb_metrics.report.formatting import clock
from mb_metrics.report.html_tables import configuration_html, statistics_html, status_text, warnings_html
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.run_statistics import compute_run_statistics
from mb_metrics.report.time_split import split_time
from mb_metrics.report.timeline import goodput_html, timeline_html

LARGEST_PAGE = 3_000_000
"""Maximum size of a page in bytes."""
_MOST_POINTS, _FEWEST_POINTS = 400, 25


class ReportTooLargeError(MetricsError, ValueError):
    """Error raised when a page on too many runs would exceed the size limit."""


def report_html(runs: Sequence[RunHistory], *, now: float, largest: int = LARGEST_PAGE) -> str:
    """Return a page on one run, or a comparison of several runs; `now` is in seconds since the epoch.

    Curves with more values than points on the page show the mean and the range of the values at each point, with a
    note. The number of points is reduced if the page would have `largest` bytes or more.

    Raises:
        ReportTooLargeError: the page would be too large even with the fewest points.
        ValueError: `runs` is empty.
    """
    if not runs:
        raise ValueError("report_html: runs is empty. A page needs at least one run. Pass one.")
    subjects = [
        LabeledRun(run, split_time(run), label) for run, label in zip(runs, _labels(runs), strict=True)
    ]
    points = _MOST_POINTS
    while points >= _FEWEST_POINTS:
        page = _page(subjects, now=now, points=points)
        size = len(page.encode())
        if size < largest:
            return page
        points = min(points // 2, int(points * largest / size))
    raise ReportTooLargeError(
        f"report_html: {len(runs)} runs exceed the page limit of {largest / 1e6:g} MB. Compare fewer runs at a time."
    )


def write_report(runs: Sequence[RunHistory], path: str | Path, *, now: float) -> Path:
    """Write the page of `report_html` to a file, create its folder if needed, and return its path."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(report_html(runs, now=now), encoding="utf-8")
    return target


def _labels(runs: Sequence[RunHistory]) -> list[str]:
    """Return a label for each run; the source is appended to names that are not unique."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else f"{run.name} ({run.source})" for run in runs]


def _page(subjects: Sequence[LabeledRun], *, now: float, points: int) -> str:
    statistics = [compute_run_statistics(subject.run, now=now, split=subject.split) for subject in subjects]
    runs, labels = [subject.run for subject in subjects], [subject.label for subject in subjects]
    alone = len(runs) == 1
    title = labels[0] if alone else f"{len(runs)} runs compared"
    under = f"{status_text(statistics[0])}; {runs[0].source}" if alone else ", ".join(labels)
    panels = ChartBuilder(subjects, buckets=points)
    charts = "".join(chart_html(chart) for chart in panels.charts())
    rest = (
        f"<p><small>Not plotted: {escape(', '.join(panels.left_out))}.</small></p>" if panels.left_out else ""
    )
    times = "".join(goodput_html(one.split, label=None if alone else one.label) for one in subjects)
    course = "".join(
        timeline_html(one.run, one.split, label=None if alone else one.label) for one in subjects
    )
    warned = "".join(
        ("" if alone else f"<h3>{escape(label)}</h3>") + warnings_html(one.warnings)
        for label, one in zip(labels, statistics, strict=True)
    )
    empty = "" if charts else "<p>No step is recorded yet: there is nothing to plot.</p>"
    sections = [
        ("", statistics_html(statistics, labels)),
        ("Warnings", warned),
        ("Time by activity", times + course),
        ("Curves", f'<div class="charts">{charts}</div>{rest}{empty}'),
        ("Configuration", configuration_html(runs, labels)),
    ]
    body = "".join(
        f"<section>{f'<h2>{head}</h2>' if head else ''}{content}</section>"
        for head, content in sections
        if content
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_resource('page.css')}</style></head><body>"
        f"<header><h1>{escape(title)}</h1><p>{escape(under)}</p></header><main>{body}</main>"
        f"<footer><p>Written {clock(now)} by mb-metrics.</p></footer>"
        f"<script>{_resource('page.js')}</script></body></html>\n"
    )


def _resource(name: str) -> str:
    return files("mb_metrics.report").joinpath(name).read_text(encoding="utf-8")
