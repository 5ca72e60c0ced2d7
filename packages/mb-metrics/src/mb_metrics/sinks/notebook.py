"""Live display of metrics in a notebook, through IPython, which every notebook has. It is imported when it is used."""

import math
import time
from collections.abc import Callable, Mapping
from html import escape
from importlib import import_module
from typing import Any

from mb_metrics import names
from mb_metrics.errors import MetricsError
from mb_metrics.recorder.record import Evaluation, LogInterval
from mb_metrics.report.formatting import duration, short
from mb_metrics.report.series import Envelope, Series, envelope
from mb_metrics.sinks.sink import Sink

_WIDTH, _HEIGHT, _POINTS = 640, 180, 320


class NotebookUnavailableError(MetricsError, ImportError):
    """Error raised when there is no IPython to display with."""

    bad_input = True


class NotebookSink(Sink):
    """Sink that plots the main loss below the cell, with the newest values, and updates them while the cell runs.

    The chart is SVG in the colours of the notebook: it needs no script and stays in the saved notebook.

    Args:
        loss: Name of the metric that is plotted; None: the main loss.
        seconds: Least time between two updates. Evaluations and the end are always shown.
        display: Module with the functions `HTML` and `display` of `IPython.display`; None: that one.
        clock: Monotonic clock, in seconds.

    Raises:
        NotebookUnavailableError: IPython is not installed.
    """

    def __init__(
        self,
        *,
        loss: str | None = None,
        seconds: float = 0.5,
        display: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = loss
        self._seconds = seconds
        self._display = display or _ipython_display()
        self._clock = clock
        self._handle: Any = None
        self._drawn = -math.inf
        self._training, self._validation = Series(), Series()
        self._facts: dict[str, str] = {}

    def write_interval(self, interval: LogInterval) -> None:
        """Add the steps of an interval, and update if the last chart is old enough."""
        for row in interval.rows:
            name = self._loss_among(row.values)
            if name is not None and (not len(self._training) or row.step > self._training.steps[-1]):
                self._training.append(row.step, row.values[name])
        self._facts = _facts(interval)
        if self._clock() - self._drawn >= self._seconds:
            self._draw()

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Add the validation loss, and update the chart."""
        loss = evaluation.losses.get(self._name or "", next(iter(evaluation.losses.values()), None))
        if loss is not None and (not len(self._validation) or evaluation.step > self._validation.steps[-1]):
            self._validation.append(evaluation.step, loss)
        self._draw()

    def close(self) -> None:
        """Show the last state."""
        if self._facts:
            self._draw()

    def _loss_among(self, values: Mapping[str, float]) -> str | None:
        if self._name is None:
            losses = [name for name in values if names.is_loss(name)] or [*filter(names.is_averaged, values)]
            self._name = next(
                (name for name in losses if names.is_training_loss(name)), next(iter(losses), None)
            )
        return self._name if self._name in values else None

    def _draw(self) -> None:
        self._drawn = self._clock()
        html = self._display.HTML(_html(self._name or "loss", self._training, self._validation, self._facts))
        if self._handle is None:
            self._handle = self._display.display(html, display_id=True)
        else:
            self._handle.update(html)


def _ipython_display() -> Any:
    try:
        return import_module("IPython.display")
    except ModuleNotFoundError as error:
        raise NotebookUnavailableError(
            "NotebookSink: needs IPython, which is not installed. Notebooks have it. Use ConsoleSink elsewhere, or "
            "install it: pip install ipython"
        ) from error


def _facts(interval: LogInterval) -> dict[str, str]:
    latest, rates, losses = interval.latest, interval.rates, interval.mean_losses
    rate, norm = names.find_learning_rate(latest), names.find_grad_norm(latest)
    total = "" if interval.total_steps is None else f" of {interval.total_steps:,}"
    facts = {"step": f"{interval.last.step:,}{total}"}
    facts |= {name: short(value) for name, value in losses.items()}
    facts |= {name: short(latest[name]) for name in (rate, norm) if name is not None}
    if rates.tokens_per_second is not None:
        facts["tokens/s"] = short(rates.tokens_per_second)
    if rates.mfu is not None:
        facts["MFU"] = f"{100 * rates.mfu:.1f} %"
    if interval.seconds_left is not None:
        facts["time left"] = duration(interval.seconds_left)
    return facts


def _html(name: str, training: Series, validation: Series, facts: dict[str, str]) -> str:
    text = " &nbsp; ".join(
        f"<small>{escape(key)}</small> <b>{escape(value)}</b>" for key, value in facts.items()
    )
    return f"<div><div>{text}</div>{_chart(name, training, validation)}</div>"


def _chart(name: str, training: Series, validation: Series) -> str:
    """Return the curves as SVG; empty before the second finite value."""
    drawn = envelope(training, buckets=_POINTS)
    points = [bucket.mean for bucket in drawn.buckets]
    dots = [(step, value) for step, value in validation.finite()]
    if len(points) < 2:
        return ""
    low, high = min(points + [value for _, value in dots]), max(points + [value for _, value in dots])
    first, last = drawn.buckets[0].step, max([drawn.buckets[-1].step, *(step for step, _ in dots)])

    def at(step: float, value: float) -> tuple[float, float]:
        x = 60 + (_WIDTH - 70) * (step - first) / ((last - first) or 1)
        return x, 10 + (_HEIGHT - 35) * (1 - (value - low) / ((high - low) or 1))

    line = " ".join("{:.1f},{:.1f}".format(*at(one.step, one.mean)) for one in drawn.buckets)
    marks = "".join(
        '<circle cx="{:.1f}" cy="{:.1f}" r="3.5" fill="#d9730d"/>'.format(*at(step, value))
        for step, value in dots
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" style="max-width:{_WIDTH}px" fill="none" role="img" '
        f'aria-label="{escape(name, quote=True)}"><polyline points="{line}" stroke="#2f81f7" stroke-width="1.6"/>'
        f"{marks}{_bad(drawn, at, high)}{_axes(low, high, first, last)}</svg>"
    )


def _bad(drawn: Envelope, at: Callable[[float, float], tuple[float, float]], high: float) -> str:
    """Return red marks at the steps whose loss is not finite."""
    return "".join(
        f'<path d="M{at(step, high)[0]:.1f} 4v12" stroke="#e5484d" stroke-width="2"/>'
        for step in drawn.nonfinite_steps
    )


def _axes(low: float, high: float, first: float, last: float) -> str:
    bottom = _HEIGHT - 25
    labels = (
        (54, 16, "end", short(high)),
        (54, bottom, "end", short(low)),
        (60, _HEIGHT - 8, "start", f"{first:,.0f}"),
        (_WIDTH - 10, _HEIGHT - 8, "end", f"step {last:,.0f}"),
    )
    texts = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="12" fill="currentColor">{text}</text>'
        for x, y, anchor, text in labels
    )
    return f'<path d="M60 8V{bottom}H{_WIDTH - 10}" stroke="currentColor" stroke-opacity=".35"/>{texts}'
