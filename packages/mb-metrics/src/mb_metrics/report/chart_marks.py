"""Marks in the charts of a run: restarts, saves, evaluations and anomalies."""

from collections.abc import Iterable, Iterator, Sequence

from mb_metrics.report.anomalies import Anomaly
from mb_metrics.report.formatting import duration
from mb_metrics.report.run_history import RunHistory

_MOST = 300
"""Marks of a kind; of more, some are left out at equal distances."""


def chart_marks(run: RunHistory, anomalies: Sequence[Anomaly], number: int) -> list[dict[str, object]]:
    """Return the marks of the run with a number as data for the script: kind, step and text."""
    marks: list[dict[str, object]] = []
    for kind, found in (
        ("restart", _events(run, ("resume", "restart"), "resumed")),
        ("save", _events(run, ("save",), "checkpoint saved")),
        ("evaluation", ((each.step, "evaluated") for each in run.evaluations)),
        ("anomaly", ((each.step, each.text) for each in anomalies)),
    ):
        marks += [{"run": number, "kind": kind, "step": step, "text": text} for step, text in _some([*found])]
    return marks


def _events(run: RunHistory, kinds: Sequence[str], text: str) -> Iterator[tuple[int, str]]:
    for event in run.events:
        if event.kind in kinds and event.step is not None:
            took = "" if event.seconds is None else f", {duration(event.seconds)}"
            yield event.step, f"{text}{took}"


def _some(found: Sequence[tuple[int, str]]) -> Iterable[tuple[int, str]]:
    return found[:: max(1, -(-len(found) // _MOST))]
