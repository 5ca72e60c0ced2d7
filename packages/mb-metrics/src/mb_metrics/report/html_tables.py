"""Statistics and settings as HTML: tiles for one run, tables for several runs."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

from mb_metrics.report.anomalies import Anomaly, data_command
from mb_metrics.report.chart import Chart
from mb_metrics.report.formatting import short
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.run_settings import RunConfiguration
from mb_metrics.report.run_statistics import MOST_ANOMALIES, ROWS, RunStatistics, first_loss


def statistics_html(statistics: Sequence[RunStatistics], labels: Sequence[str]) -> str:
    """Return tiles for one run, or a table with one column per run and the differences from the first run.

    Rows without a known value are omitted.
    """
    rows = [(name, [text_of(run) for run in statistics]) for name, text_of in ROWS]
    rows = [(name, values) for name, values in rows if any(value != "?" for value in values)]
    if len(statistics) == 1:
        tiles = "".join(f"<div><dt>{name}</dt><dd>{escape(values[0])}</dd></div>" for name, values in rows)
        return f'<dl class="tiles">{tiles}</dl>'
    heads = [
        f'<th scope="col" class="c{index % 8}">{escape(label)}</th>' for index, label in enumerate(labels)
    ]
    cells = {
        name: [
            escape(value) + change for value, change in zip(values, _changes(name, statistics), strict=True)
        ]
        for name, values in rows
    }
    return _table(heads, [*cells.items()])


def _changes(name: str, statistics: Sequence[RunStatistics]) -> Iterator[str]:
    """Yield the difference of each run from the first one; empty for the first, and where one is not known."""
    number_of = _NUMBERS.get(name)
    first = number_of(statistics[0]) if number_of else None
    for index, run in enumerate(statistics):
        value = number_of(run) if number_of and index else None
        if first is None or value is None or not math.isfinite(value - first):
            yield ""
            continue
        difference = _signed(value - first, unit=_UNITS.get(name, ""))
        share = f", {value / first - 1:+.1%}" if first > 0 else ""
        yield f" <small>({difference}{share})</small>"


def _signed(difference: float, *, unit: str) -> str:
    if unit == _POINTS:
        return f"{100 * difference:+.1f}{unit}"
    return f"{'-' if difference < 0 else '+'}{short(abs(difference))}{unit}"


def anomalies_html(anomalies: Sequence[Anomaly], run: RunHistory) -> str:
    """Return a table of the anomalies, each with the command that shows the data of its step."""
    if not anomalies:
        return ""
    names = ["Step", "What", *(["Data of the step"] if data_command(run, anomalies[0].step) else [])]
    cells = "".join(f'<th scope="col">{name}</th>' for name in names)
    heads = f"<tr>{cells}</tr>"
    rows = [
        _anomaly_row(step, list(group), run)
        for step, group in groupby(anomalies, lambda anomaly: anomaly.step)
    ]

    def table(part: Sequence[str]) -> str:
        body = "".join(part)
        return f'<div class="wide"><table class="anomalies"><thead>{heads}</thead><tbody>{body}</tbody></table></div>'

    rest = rows[MOST_ANOMALIES:]
    more = f"<details><summary>{len(rest)} more</summary>{table(rest)}</details>" if rest else ""
    return table(rows[:MOST_ANOMALIES]) + more


def _anomaly_row(step: int, anomalies: Sequence[Anomaly], run: RunHistory) -> str:
    command = data_command(run, step)
    text = escape("; ".join(anomaly.text for anomaly in anomalies))
    return (
        f'<tr class="{anomalies[0].kind.lower()}"><td>{step:,}</td>'
        f"<td>{text}</td>{f'<td>{_code(command)}</td>' if command else ''}</tr>"
    )


def warnings_html(warnings: Sequence[str]) -> str:
    """Return the list of warnings as HTML."""
    if not warnings:
        return ""
    return '<ul class="warnings">' + "".join(f"<li>{escape(text[:500])}</li>" for text in warnings) + "</ul>"


def single_values_html(charts: Sequence[Chart]) -> str:
    """Return a table of the metrics that were recorded once, instead of charts with one point."""
    rows = [
        (
            escape(chart.title),
            (escape(curve.label), f"{short(point.mean)} {escape(chart.unit)}", f"{point.step:,.0f}"),
        )
        for chart in charts
        for curve in chart.known
        for point in curve.shape.buckets
    ]
    heads = [f'<th scope="col">{name}</th>' for name in ("curve", "value", "step")]
    return f"<h3>Recorded once</h3>{_table(heads, rows)}" if rows else ""


def configuration_html(runs: Sequence[RunHistory], labels: Sequence[str]) -> str:
    """Return differences (from the recipe, between runs), and all settings in a collapsed element."""
    configured = [
        (run.configuration, label) for run, label in zip(runs, labels, strict=True) if run.configuration
    ]
    parts = [_differences_between_runs(configured)] if len(configured) > 1 else []
    for configuration, label in configured:
        parts.append(_against_baseline(configuration, label if len(runs) > 1 else None))
    for run, label in zip(runs, labels, strict=True):
        parts.append(_all_settings(run, label if len(runs) > 1 else None))
    return "".join(parts) or "<p>No configuration was found.</p>"


def _differences_between_runs(configured: Sequence[tuple[RunConfiguration | None, str]]) -> str:
    settings = [configuration.settings for configuration, _ in configured if configuration]
    paths = sorted({path for of_run in settings for path in of_run})
    rows = [(path, [of_run.get(path) for of_run in settings]) for path in paths]
    rows = [(path, values) for path, values in rows if any(value != values[0] for value in values)]
    if not rows:
        return "<p>The runs have the same settings.</p>"
    return "<h3>Differences between the runs</h3>" + _settings_table([label for _, label in configured], rows)


def _against_baseline(configuration: RunConfiguration, label: str | None) -> str:
    if configuration.baseline is None:
        return ""
    title = f"{label}: changed" if label else "Changed"
    head = f"<h3>{escape(title)} from {escape(configuration.baseline)}</h3>"
    if not configuration.changes:
        return f"{head}<p>Nothing.</p>"
    rows = [(path, list(pair)) for path, pair in configuration.changes.items()]
    heads = [configuration.baseline, "this run"]
    set_by_user = configuration.set_by_user
    if set_by_user is None:
        return head + _settings_table(heads, rows)
    by_user = [row for row in rows if row[0] in set_by_user]
    derived = [row for row in rows if row[0] not in set_by_user]
    return f"{head}<h4>By you</h4>{_settings_table(heads, by_user) if by_user else '<p>Nothing.</p>'}" + (
        f"<h4>By resolving</h4>{_settings_table(heads, derived)}" if derived else ""
    )


def _settings_table(labels: Sequence[str], rows: Sequence[tuple[str, Sequence[object]]]) -> str:
    heads = [f'<th scope="col">{escape(label)}</th>' for label in labels]
    return _table(
        heads, [(_code(path), [_code(_setting_text(value)) for value in values]) for path, values in rows]
    )


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _table(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return a table of cells in HTML, with a name for each row."""
    body = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    )
    head = f"<tr><td></td>{''.join(heads)}</tr>"
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _all_settings(run: RunHistory, label: str | None) -> str:
    title = f"All settings of {label}" if label else "All settings"
    if run.configuration is not None:
        text = "\n".join(
            f"{path}: {_setting_text(value)}" for path, value in run.configuration.settings.items()
        )
    elif run.config_text is not None:
        text = run.config_text
    else:
        return ""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _setting_text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


_NUMBERS: Mapping[str, Callable[[RunStatistics], float | None]] = {
    "Last loss": lambda run: loss.last if (loss := first_loss(run.losses)) else None,
    "Recent mean": lambda run: loss.recent_mean if (loss := first_loss(run.losses)) else None,
    "Best validation": lambda run: loss.lowest if (loss := first_loss(run.validation)) else None,
    "Step time": lambda run: run.step_seconds.median if run.step_seconds else None,
    "Tokens per second": lambda run: run.tokens_per_second,
    "Tokens/s and device": lambda run: run.tokens_per_second_per_device,
    "TFLOP/s per device": lambda run: run.tflops_per_device,
    "MFU": lambda run: run.mfu,
    "Peak memory": lambda run: max(run.peak_memory.values(), default=None),
    "Goodput": lambda run: run.goodput,
}
"""Rows in which runs are compared with the first one: name, and the number of a run."""

_POINTS = " points"
_UNITS = {"Step time": " s", "MFU": _POINTS, "Goodput": _POINTS}
"""Units of differences; points: of a percentage."""
