"""Record of a run's statistics, and their text: rows of `mb-metrics report`, of its page and of notebooks."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Literal

from mb_metrics.report.anomalies import Anomaly
from mb_metrics.report.formatting import duration, percent, short

RunStatus = Literal["empty", "running", "silent", "complete", "stopped", "failed"]
MOST_ANOMALIES = 12
"""Anomalies that are shown at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStatistics:
    """Statistics of one loss; None if there is no finite value."""

    first: float | None
    last: float | None
    lowest: float | None
    lowest_step: int | None
    recent_mean: float | None
    """Mean of the finite values among the last `recent_steps`."""
    recent_steps: int
    """Number of rows that `recent_mean` covers: 100, or all rows of a shorter run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeStatistics:
    """Statistics of the step time in seconds, excluding the first step after a start and time outside training."""

    median: float
    mean: float
    low: float
    """5th percentile."""
    high: float
    """95th percentile."""
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStatistics:
    """Time for which saves or evaluations blocked training."""

    count: int
    seconds: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatistics:
    """Statistics of a run. None: not known. Times are in seconds; rates are over all devices unless noted."""

    name: str
    source: str
    status: RunStatus
    """Status of the run. "running": files were written recently; "silent": they were not, and no stop is recorded."""
    reason: str | None
    """Recorded reason of the stop."""
    closed: bool | None
    """Whether the metrics file was closed by the run; None: the end is recorded as an event, or in a log."""
    steps: int | None
    total_steps: int | None
    losses: Mapping[str, LossStatistics]
    validation: Mapping[str, LossStatistics]
    step_seconds: StepTimeStatistics | None
    tokens_per_second: float | None
    """Tokens of a step by the median step time, so that both describe the same steps; the next three are medians."""
    tokens_per_second_per_device: float | None
    predicted_tokens_per_second_per_device: float | None
    """Prediction before the newest start, from its event."""
    tflops_per_device: float | None
    mfu: float | None
    """MFU as a fraction."""
    peak_memory: Mapping[str, float]
    """Maximum of each memory metric."""
    seconds: Mapping[str, float]
    """Seconds by activity: training, evaluating, saving, starting, lost, other and stopped."""
    goodput: float | None
    """Training time as a fraction of the total time excluding "stopped"."""
    saves: WaitStatistics
    evaluations: WaitStatistics
    restarts: int
    """Number of restarts of training."""
    redone_steps: int
    """Number of steps discarded by restarts."""
    skipped_steps: int
    nonfinite_steps: int
    """Number of steps with a NaN or infinite loss."""
    seconds_left: float | None
    """Estimated time to the last step, including evaluations and saves; only for a run in progress."""
    warnings: tuple[str, ...]
    anomalies: tuple[Anomaly, ...] = ()
    """Spikes, losses that are not finite, and stalls, by step; see `AnomalyFinder`."""

    def _repr_html_(self) -> str:
        """Return statistics and anomalies as tables without colours, for light and dark notebooks."""
        rows = ((name, text_of(self)) for name, text_of in ROWS)
        cells = "".join(
            f'<tr><td style="text-align:left">{name}</td><td style="text-align:left">{escape(value)}</td></tr>'
            for name, value in rows
            if value != "?"
        )
        anomalies = [f"step {anomaly.step:,}: {anomaly.text}" for anomaly in self.anomalies[:MOST_ANOMALIES]]
        unusual = "".join(f"<li>{escape(text)}</li>" for text in (*anomalies, *self.warnings))
        table = f"<table><tbody>{cells}</tbody></table>"
        return f"<div><strong>{escape(self.name)}</strong>{table}{f'<ul>{unusual}</ul>' if unusual else ''}</div>"

    def as_json(self) -> dict[str, object]:
        """Return the statistics as JSON-compatible values; numbers that are not finite become None."""
        plain = _plain(asdict(self))
        assert isinstance(plain, dict)
        return plain


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


_STATUS_TEXT = {
    "empty": "nothing recorded yet",
    "running": "running",
    "silent": "no stop recorded",
    "complete": "complete",
    "stopped": "stopped",
    "failed": "failed",
}


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
    return (
        f"{words} ({reason})" if reason and reason not in ("finished", "failed", "stop", "stopped") else words
    )


def _steps_of_total(steps: int | None, total: int | None) -> str:
    done = f"{steps or 0:,}"
    return f"{done} of {total:,}" if total is not None else done


def first_loss(losses: Mapping[str, LossStatistics]) -> LossStatistics | None:
    """Return the statistics of the main loss; None if no loss is recorded."""
    return next(iter(losses.values()), None)


def _predicted(statistics: RunStatistics) -> str:
    """Return the predicted throughput of a device, and how far the measured one is from it."""
    predicted = statistics.predicted_tokens_per_second_per_device
    measured = statistics.tokens_per_second_per_device
    if predicted is None or measured is None:
        return short(predicted)
    return f"{short(predicted)} (measured {measured / predicted - 1:+.0%})"


def _recent_mean(statistics: RunStatistics) -> str:
    loss = first_loss(statistics.losses)
    if loss is None or loss.recent_mean is None:
        return "?"
    return f"{short(loss.recent_mean)} over {loss.recent_steps}"


def _validation(statistics: RunStatistics) -> str:
    first = first_loss(statistics.validation)
    if first is None or first.lowest is None:
        return "?"
    return f"{short(first.lowest)} at step {first.lowest_step:,}"


def _count_and_duration(count: int, seconds: float) -> str:
    return f"{count:,} in {duration(seconds)}" if count else "none"


def _restarts(statistics: RunStatistics) -> str:
    if not statistics.restarts:
        return "none"
    repeated = statistics.redone_steps
    return f"{statistics.restarts}" + (f" ({_steps(repeated)} repeated)" if repeated else "")


def _steps(count: int) -> str:
    return f"{count:,} {'step' if count == 1 else 'steps'}"


def peak_memory_text(statistics: RunStatistics) -> str:
    """Return the largest amount of device memory with its unit."""
    name = max(statistics.peak_memory, key=lambda name: statistics.peak_memory[name], default=None)
    if name is None:
        return "?"
    unit = "GB" if "gigabyte" in name else "bytes"
    if "gib" in name.lower():
        unit = "GiB"
    return f"{short(statistics.peak_memory[name])} {unit}"


def _per_device(statistics: RunStatistics) -> str:
    device = statistics.tokens_per_second_per_device
    return short(None if device == statistics.tokens_per_second else device)


ROWS: tuple[tuple[str, Callable[[RunStatistics], str]], ...] = (
    ("State", status_text),
    ("Steps", lambda run: _steps_of_total(run.steps, run.total_steps)),
    ("Last loss", lambda run: short(loss.last) if (loss := first_loss(run.losses)) else "?"),
    ("Recent mean", _recent_mean),
    ("Best validation", _validation),
    ("Step time", lambda run: duration(run.step_seconds.median) if run.step_seconds else "?"),
    ("Tokens per second", lambda run: short(run.tokens_per_second)),
    ("Tokens/s and device", _per_device),
    ("Predicted tokens/s", _predicted),
    ("TFLOP/s per device", lambda run: short(run.tflops_per_device)),
    ("MFU", lambda run: percent(run.mfu)),
    ("Peak memory", peak_memory_text),
    ("Goodput", lambda run: percent(run.goodput)),
    ("Checkpoints", lambda run: _count_and_duration(run.saves.count, run.saves.seconds)),
    ("Evaluations", lambda run: _count_and_duration(run.evaluations.count, run.evaluations.seconds)),
    ("Restarts", _restarts),
    ("Skipped steps", lambda run: f"{run.skipped_steps:,}"),
    ("NaN or infinite", lambda run: _steps(run.nonfinite_steps)),
    ("Time left", lambda run: duration(run.seconds_left)),
)
"""Rows of the tables: name, and the text of a run; "?" where it is not known."""
