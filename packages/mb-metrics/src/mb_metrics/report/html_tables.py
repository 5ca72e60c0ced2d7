"""Statistics and settings as HTML: tiles for one run, tables for several runs."""

from collections.abc import Callable, Mapping, Sequence
from html import escape

from mb_metrics.report.formatting import duration, percent, short
from mb_metrics.report.run_history import RunConfiguration, RunHistory
from mb_metrics.report.run_statistics import LossStatistics, RunStatistics

_STATUS_TEXT = {
    "empty": "nothing recorded yet",
    "running": "running",
    "silent": "no stop recorded",
    "complete": "complete",
    "stopped": "stopped",
    "failed": "failed",
}

_STATISTICS: tuple[tuple[str, Callable[[RunStatistics], str]], ...] = (
    ("State", lambda one: status_text(one)),
    ("Steps", lambda one: _of(one.steps, one.total_steps)),
    ("Last loss", lambda one: short(loss.last) if (loss := _first(one.losses)) else "?"),
    ("Recent mean", lambda one: _recent_mean(one)),
    ("Best validation", lambda one: _validation(one)),
    ("Step time", lambda one: duration(one.step_seconds.median) if one.step_seconds else "?"),
    ("Tokens per second", lambda one: short(one.tokens_per_second)),
    ("Tokens/s and device", lambda one: _per_device(one)),
    ("Predicted tokens/s", lambda one: _predicted(one)),
    ("TFLOP/s per device", lambda one: short(one.tflops_per_device)),
    ("MFU", lambda one: percent(one.mfu)),
    ("Peak memory", lambda one: _memory(one)),
    ("Goodput", lambda one: percent(one.goodput)),
    ("Checkpoints", lambda one: _waits(one.saves.count, one.saves.seconds)),
    ("Evaluations", lambda one: _waits(one.evaluations.count, one.evaluations.seconds)),
    ("Restarts", lambda one: _restarts(one)),
    ("Skipped steps", lambda one: f"{one.skipped_steps:,}"),
    ("NaN or infinite", lambda one: f"{one.nonfinite_steps:,} steps"),
    ("Time left", lambda one: duration(one.seconds_left)),
)


def statistics_html(statistics: Sequence[RunStatistics], labels: Sequence[str]) -> str:
    """Return tiles for one run, or a table with one column per run; rows without a known value are omitted."""
    rows = [(name, [write(one) for one in statistics]) for name, write in _STATISTICS]
    rows = [(name, values) for name, values in rows if any(value != "?" for value in values)]
    if len(statistics) == 1:
        tiles = "".join(f"<div><dt>{name}</dt><dd>{escape(values[0])}</dd></div>" for name, values in rows)
        return f'<dl class="tiles">{tiles}</dl>'
    heads = [
        f'<th scope="col" class="c{index % 8}">{escape(label)}</th>' for index, label in enumerate(labels)
    ]
    return _table(heads, [(name, [escape(value) for value in values]) for name, values in rows])


def status_text(statistics: RunStatistics) -> str:
    """Return the status of a run and the reason of its stop."""
    if statistics.closed is False and statistics.status in ("running", "silent"):
        return "not closed (killed or still running)"
    words = (
        "finished"
        if statistics.closed and statistics.status == "complete"
        else _STATUS_TEXT[statistics.status]
    )
    reason = statistics.reason
    return f"{words} ({reason})" if reason and reason not in ("finished", "failed", "stop") else words


def warnings_html(warnings: Sequence[str]) -> str:
    """Return the list of warnings as HTML."""
    if not warnings:
        return "<p>None.</p>"
    return '<ul class="warnings">' + "".join(f"<li>{escape(text[:500])}</li>" for text in warnings) + "</ul>"


def configuration_html(runs: Sequence[RunHistory], labels: Sequence[str]) -> str:
    """Return differences (from the recipe, between runs), and all settings in a collapsed element."""
    known = [(run.configuration, label) for run, label in zip(runs, labels, strict=True) if run.configuration]
    parts = [_between(known)] if len(known) > 1 else []
    for configuration, label in known:
        parts.append(_against_baseline(configuration, label if len(runs) > 1 else None))
    for run, label in zip(runs, labels, strict=True):
        parts.append(_all_settings(run, label if len(runs) > 1 else None))
    return "".join(parts) or "<p>No configuration was found.</p>"


def _between(known: Sequence[tuple[RunConfiguration | None, str]]) -> str:
    settings = [configuration.settings for configuration, _ in known if configuration]
    paths = sorted({path for one in settings for path in one})
    rows = [(path, [one.get(path) for one in settings]) for path in paths]
    rows = [(path, values) for path, values in rows if any(value != values[0] for value in values)]
    if not rows:
        return "<p>The runs have the same settings.</p>"
    return "<h3>Differences between the runs</h3>" + _settings_table([label for _, label in known], rows)


def _against_baseline(configuration: RunConfiguration, label: str | None) -> str:
    if configuration.baseline is None:
        return ""
    title = f"{label}: changed" if label else "Changed"
    head = f"<h3>{escape(title)} from {escape(configuration.baseline)}</h3>"
    if not configuration.changes:
        return f"{head}<p>Nothing.</p>"
    rows = [(path, list(pair)) for path, pair in configuration.changes.items()]
    return head + _settings_table([configuration.baseline, "this run"], rows)


def _settings_table(labels: Sequence[str], rows: Sequence[tuple[str, Sequence[object]]]) -> str:
    heads = [f'<th scope="col">{escape(label)}</th>' for label in labels]
    return _table(
        heads, [(_code(path), [_code(_setting(value)) for value in values]) for path, values in rows]
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
        text = "\n".join(f"{path}: {_setting(value)}" for path, value in run.configuration.settings.items())
    elif run.config_text is not None:
        text = run.config_text
    else:
        return ""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _setting(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of(steps: int | None, total: int | None) -> str:
    done = f"{steps or 0:,}"
    return f"{done} of {total:,}" if total is not None else done


def _first(losses: Mapping[str, LossStatistics]) -> LossStatistics | None:
    return next(iter(losses.values()), None)


def _predicted(statistics: RunStatistics) -> str:
    """Return the predicted throughput of a device, and how far the measured one is from it."""
    predicted = statistics.predicted_tokens_per_second_per_device
    measured = statistics.tokens_per_second_per_device
    if predicted is None or measured is None:
        return short(predicted)
    return f"{short(predicted)} (measured {measured / predicted - 1:+.0%})"


def _recent_mean(statistics: RunStatistics) -> str:
    loss = _first(statistics.losses)
    if loss is None or loss.recent_mean is None:
        return "?"
    return f"{short(loss.recent_mean)} over {loss.recent_steps}"


def _validation(statistics: RunStatistics) -> str:
    first = _first(statistics.validation)
    if first is None or first.lowest is None:
        return "?"
    return f"{short(first.lowest)} at step {first.lowest_step:,}"


def _waits(count: int, seconds: float) -> str:
    return f"{count:,} in {duration(seconds)}" if count else "none"


def _restarts(statistics: RunStatistics) -> str:
    if not statistics.restarts:
        return "none"
    repeated = statistics.redone_steps
    return f"{statistics.restarts}" + (
        f" ({repeated:,} {'step' if repeated == 1 else 'steps'} repeated)" if repeated else ""
    )


def _memory(statistics: RunStatistics) -> str:
    name = max(statistics.peak_memory, key=lambda name: statistics.peak_memory[name], default=None)
    if name is None:
        return "?"
    unit = "GiB" if "gib" in name.lower() else "GB" if "gigabyte" in name else "bytes"
    return f"{short(statistics.peak_memory[name])} {unit}"


def _per_device(statistics: RunStatistics) -> str:
    device = statistics.tokens_per_second_per_device
    return short(None if device == statistics.tokens_per_second else device)
