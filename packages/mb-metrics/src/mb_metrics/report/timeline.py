"""Timeline of a run: attempts, evaluations, checkpoints, skipped and NaN steps."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from mb_metrics.report.formatting import clock, duration, edge_class, percent, time_ticks
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.series import Series
from mb_metrics.report.time_split import KINDS, TimeKind, TimeSpan, TimeSplit

WIDTH, LANE = 1000.0, 18.0
_GAP = 14.0
_MOST_MARKS = 400

WORDS: dict[TimeKind, str] = {
    "training": "training",
    "evaluating": "evaluating",
    "saving": "saving checkpoints",
    "starting": "starting",
    "lost": "lost",
    "other": "other",
    "stopped": "stopped",
}


@dataclass(frozen=True, slots=True)
class _AttemptBar:
    """Bar of an attempt in the chart: its time span and its horizontal position."""

    span: TimeSpan
    left: float
    right: float


class _TimeAxis:
    """Horizontal axis of running time; the time between two attempts is shortened to a small gap."""

    def __init__(self, attempts: Sequence[TimeSpan]) -> None:
        total = math.fsum(span.seconds for span in attempts) or 1.0
        room = WIDTH - _GAP * (len(attempts) - 1)
        self.scale = max(room, WIDTH / 2) / total
        self.pieces: list[_AttemptBar] = []
        left = 0.0
        for span in attempts:
            right = left + span.seconds * self.scale
            self.pieces.append(_AttemptBar(span, left, right))
            left = right + _GAP
        self.width = max(left - _GAP, 1.0)

    def position(self, time: float) -> float:
        """Return the position of a time; a time between two attempts is at the end of the earlier one."""
        for piece in reversed(self.pieces):
            if time >= piece.span.begin:
                return min(piece.left + (time - piece.span.begin) * self.scale, piece.right)
        return 0.0


def goodput_html(split: TimeSplit, *, label: str | None) -> str:
    """Return a bar of the time by activity, with a legend."""
    total = split.running_seconds
    if total <= 0:
        return ""
    parts = [(kind, split.seconds[kind]) for kind in KINDS if split.seconds[kind] > 0.0005 * total]
    bar = "".join(
        f'<span class="k-{kind}" style="flex-grow:{seconds / total:.5f}"'
        f' title="{WORDS[kind]} {duration(seconds)}"></span>'
        for kind, seconds in parts
    )
    words = "".join(
        f'<li class="k-{kind}"><b>{WORDS[kind]}</b> {percent(seconds / total)} <small>{duration(seconds)}</small></li>'
        for kind, seconds in parts
    )
    stopped = split.seconds["stopped"]
    rest = f"<li><small>and {duration(stopped)} stopped, not counted</small></li>" if stopped >= 1 else ""
    head = f"<h3>{escape(label)}</h3>" if label else ""
    return (
        f'<div class="goodput">{head}<div class="bar" aria-hidden="true">{bar}</div>'
        f'<ul class="legend">{words}{rest}</ul></div>'
    )


def timeline_html(run: RunHistory, split: TimeSplit) -> str:
    """Return the timeline; empty for a run whose times are not known."""
    if not split.attempts or split.attempts[-1].end <= split.attempts[0].begin:
        return ""
    axis = _TimeAxis(split.attempts)
    lanes = [("ran", _attempts(axis))]
    for name, kind in (("evaluation", "evaluation"), ("checkpoint", "save")):
        spans = [span for span in split.waits if span.kind == kind]
        lanes.append(
            (name, _marks(axis, spans, css=f"k-{'evaluating' if kind == 'evaluation' else 'saving'}"))
        )
    for name, series in (("skipped", run.skipped), ("NaN loss", run.nonfinite)):
        lanes.append((name, _marks(axis, _moments(run, series, name), css="k-lost")))
    drawn = [(name, marks) for name, marks in lanes if marks]
    height = LANE * len(drawn)
    rows = "".join(
        f'<g transform="translate(0 {LANE * number:.0f})">{marks}</g>'
        for number, (_, marks) in enumerate(drawn)
    )
    names = "".join(
        f'<span style="top:{(number + 0.5) / len(drawn):.2%}">{name}</span>'
        for number, (name, _) in enumerate(drawn)
    )
    return (
        f'<figure class="timeline"><div class="frame" style="--lanes:{len(drawn)}">'
        f'<div class="ys names">{names}</div><div class="plot"><svg viewBox="0 0 {axis.width:.1f} {height:.0f}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(_description(split), quote=True)}">'
        f"{rows}</svg></div>"
        f'<div class="xs">{_labels(axis)}</div></div><p class="read">{escape(_description(split))}</p></figure>'
    )


def _attempts(axis: _TimeAxis) -> str:
    return "".join(
        _rect(
            piece.left,
            piece.right,
            "k-training" if piece.span.kind == "stopped" else "k-training cut",
            _words(piece.span),
        )
        for piece in axis.pieces
    )


def _words(span: TimeSpan) -> str:
    end = "killed, or still running" if span.kind == "killed" else "stopped"
    return f"{clock(span.begin)} to {clock(span.end)} ({duration(span.seconds)}), then {end}"


def _marks(axis: _TimeAxis, spans: Sequence[TimeSpan], *, css: str) -> str:
    return "".join(
        _rect(axis.position(group[0].begin), axis.position(group[-1].end), css, _group_words(group))
        for group in _grouped(axis, spans)
    )


def _grouped(axis: _TimeAxis, spans: Sequence[TimeSpan]) -> Iterable[list[TimeSpan]]:
    """Merge spans that would overlap in the chart if there are too many."""
    if len(spans) <= _MOST_MARKS:
        return [[span] for span in spans]
    groups: dict[int, list[TimeSpan]] = {}
    for span in spans:
        groups.setdefault(int(axis.position(span.begin) * _MOST_MARKS / axis.width), []).append(span)
    return groups.values()


def _group_words(group: Sequence[TimeSpan]) -> str:
    if len(group) > 1:
        total = math.fsum(span.seconds for span in group)
        return f"{len(group)} x {group[0].kind}, steps {group[0].step} to {group[-1].step}" + (
            f", {duration(total)}" if total else ""
        )
    (span,) = group
    return f"{span.kind} at step {span.step}" + (f": {duration(span.seconds)}" if span.seconds else "")


def _moments(run: RunHistory, series: Series, kind: str) -> list[TimeSpan]:
    moments = []
    for step in series.steps:
        time = run.times.values[bisect_left(run.times.steps, step)]
        if math.isfinite(time):
            moments.append(TimeSpan(kind=kind, begin=time, end=time, step=step))
    return moments


def _rect(left: float, right: float, css: str, words: str) -> str:
    wide = max(right - left, 2.5)
    return (
        f'<rect class="{css}" x="{left:.1f}" y="3" width="{wide:.1f}" height="{LANE - 6:.0f}">'
        f"<title>{escape(words)}</title></rect>"
    )


def _labels(axis: _TimeAxis) -> str:
    total = axis.pieces[-1].span.end - axis.pieces[-1].span.begin
    before = math.fsum(piece.span.seconds for piece in axis.pieces[:-1])
    positions = []
    for seconds in time_ticks(before + total):
        rest = seconds
        for piece in axis.pieces:
            if rest <= piece.span.seconds + 1e-9:
                positions.append((piece.left + rest * axis.scale, seconds))
                break
            rest -= piece.span.seconds
    return "".join(
        f'<span{edge_class(x / axis.width)} style="left:{x / axis.width:.2%}">{duration(seconds)}</span>'
        for x, seconds in positions
    )


def _description(split: TimeSplit) -> str:
    first = split.attempts[0]
    restarts = len(split.attempts) - 1
    words = f"Started {clock(first.begin)}; ran {duration(math.fsum(a.seconds for a in split.attempts))}"
    if restarts:
        words += f" in {restarts + 1} attempts"
    return f"{words}; last record {clock(split.attempts[-1].end)}."
