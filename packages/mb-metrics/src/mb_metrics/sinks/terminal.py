"""Console output on a terminal: one aligned line per log interval that fits into the width of the terminal."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from mb_metrics import names
from mb_metrics.recorder.record import Evaluation, LogInterval, perplexity
from mb_metrics.report.formatting import clock_span, compact
from mb_metrics.sinks.sink import Sink

Style = Literal["plain", "label", "main", "speed", "problem", "evaluation"]
"""Role of a piece of a line; the terminal chooses its colour."""
StyledText = tuple[str, Style]
"""Piece of a line, and its role."""

_GAP = "  "
"""Between two cells."""
_MIN_STEP_WIDTH = 3


@runtime_checkable
class StyledTerminal(Protocol):
    """Terminal that prints coloured lines; a `RankConsole` is one."""

    @property
    def columns(self) -> int:
        """Current width in characters."""

    def print_styled(self, pieces: Sequence[StyledText], /) -> object:
        """Print one line; it is not written to the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """Cell of a line, and its column: a label and a value."""

    name: str
    label: str
    value: str
    style: Style = "plain"
    unit: str = ""
    """Text behind the value."""


class TerminalSink(Sink):
    """Sink that prints each log interval and each evaluation as one line, aligned below the previous one.

    A line has the step, the losses (means over the interval), the learning rate, the gradient norm, tokens per second,
    MFU, peak memory and the time left, as far as they are known, then the step time and other recorded metrics. What
    does not fit into the width of the terminal is left out, the last ones first. Skipped steps and losses that are not
    finite are always shown.

    Args:
        terminal: Prints the lines.
        throughput: If True, TFLOP/s per device are shown, if known and not below 0.05.
    """

    def __init__(self, terminal: StyledTerminal, *, throughput: bool = False) -> None:
        self._terminal = terminal
        self._throughput = throughput
        self._widths: dict[str, int] = {}  # of the values of each column so far; they never shrink
        self._earlier: dict[str, _Cell] = {}  # last value of each metric in _ORDER

    def write_interval(self, interval: LogInterval) -> None:
        """Print one line."""
        step = self._step_text(interval.last.step, interval.total_steps)
        problems = list(_problems(interval))
        ordered = self._with_earlier_columns(_cells(interval, throughput=self._throughput))
        room = self._terminal.columns - len(step) - sum(len(_GAP) + len(text) for text in problems)
        self._terminal.print_styled(
            [
                (step, "plain"),
                *self._fitted(ordered, room),
                *((f"{_GAP}{text}", "problem") for text in problems),
            ]
        )

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Print one line."""
        step = self._step_text(evaluation.step, None)
        pieces: list[StyledText] = [(step, "plain")]
        room = self._terminal.columns - len(step)
        for name, loss in evaluation.losses.items():
            text = f"{_GAP}validation {short_name(name)} {_number(loss)}"
            if evaluation.perplexities and names.is_loss(name):
                text += f"{_GAP}perplexity {compact(perplexity(loss))}"
            if len(text) > room and len(pieces) > 1:
                break
            room -= len(text)
            pieces.append((text, "evaluation" if math.isfinite(loss) else "problem"))
        self._terminal.print_styled(pieces)

    def _with_earlier_columns(self, cells: Iterable[_Cell]) -> list[_Cell]:
        """Return the cells in order; a metric in _ORDER without a value in this interval keeps its column."""
        measured = {cell.name: cell for cell in cells}
        self._earlier |= {name: cell for name, cell in measured.items() if name in _ORDER}
        empty = {name: replace(cell, value="-", style="plain") for name, cell in self._earlier.items()}
        return sorted((empty | measured).values(), key=lambda cell: _ORDER.get(cell.name, len(_ORDER)))

    def _step_text(self, step: int, total: int | None) -> str:
        """Return the head of a line, as wide as the widest one so far."""
        width, of_total = (0, "") if total is None else (len(str(total)), f"/{total}")
        text = f"step {step:>{max(_MIN_STEP_WIDTH, width)}}{of_total}"
        self._widths["step"] = max(self._widths.get("step", 0), len(text))
        return text.ljust(self._widths["step"])

    def _fitted(self, cells: Sequence[_Cell], room: int) -> Iterator[StyledText]:
        """Yield the pieces of the first cells that fit into `room` characters, and widen their columns."""
        for cell in cells:
            width = max(self._widths.get(cell.name, _WIDTHS.get(cell.name, 0)), len(cell.value))
            self._widths[cell.name] = width
            label, unit = f"{cell.label} " if cell.label else "", cell.unit
            room -= len(_GAP) + len(label) + width + len(unit)
            if room < 0:
                return
            yield f"{_GAP}{label}", "label"
            yield f"{cell.value:>{width}}", cell.style
            if unit:
                yield unit, "label"


_ORDER = {
    name: position
    for position, name in enumerate(
        ("loss", "learning rate", "grad norm", "tokens", "eta", "mfu", "memory", "step time", "tflops")
    )
}
"""Metrics that keep their column, and its position; others follow."""
_WIDTHS = {"grad norm": 6, "tokens": 5, "eta": 5, "mfu": 5, "memory": 5, "step time": 5}
"""Minimum characters of a value, so that columns seldom grow."""


def short_name(loss: str) -> str:
    """Return "loss" for the usual names of the main loss, other names unchanged."""
    return "loss" if names.is_training_loss(loss) or names.is_validation_loss(loss) else loss


def _cells(interval: LogInterval, *, throughput: bool) -> Iterator[_Cell]:
    """Yield the cells of an interval, unordered."""
    latest, losses = interval.latest, interval.mean_losses
    main = next((name for name in losses if names.is_training_loss(name)), next(iter(losses), None))
    rate, norm = names.find_learning_rate(latest), names.find_grad_norm(latest)
    if main is not None:
        style: Style = "main" if math.isfinite(losses[main]) else "problem"
        yield _Cell(name="loss", label=short_name(main), value=_number(losses[main]), style=style)
    if rate is not None:
        yield _Cell(name="learning rate", label="lr", value=f"{latest[rate]:.2e}")
    if norm is not None:
        yield _Cell(name="grad norm", label="grad", value=_number(latest[norm], digits=3))
    yield from _speed_cells(interval, throughput=throughput)
    shown = {main, rate, norm, names.PEAK_MEMORY, names.LOSS_SCALE, *names.ADDED_BY_METRICS}
    for name, value in {**latest, **losses}.items():
        if name not in shown and not names.is_validation_loss(name):
            yield _Cell(name=f"metric {name}", label=name, value=compact(value))


def _speed_cells(interval: LogInterval, *, throughput: bool) -> Iterator[_Cell]:
    rates, memory = interval.rates, interval.latest.get(names.PEAK_MEMORY)
    if rates.tokens_per_second is not None:
        speed = compact(rates.tokens_per_second)
        yield _Cell(name="tokens", label="", value=speed, style="speed", unit=" tok/s")
    if interval.seconds_left is not None:
        yield _Cell(name="eta", label="ETA", value=clock_span(interval.seconds_left))
    if rates.mfu is not None:
        yield _Cell(name="mfu", label="MFU", value=f"{100 * rates.mfu:.1f}%", style="speed")
    if memory is not None:
        yield _Cell(name="memory", label="mem", value=f"{memory:.1f}", unit=" GB")
    yield _Cell(name="step time", label="", value=clock_span(rates.step_seconds), unit="/step")
    tflops = rates.tflops_per_device
    if throughput and tflops is not None and tflops >= 0.05:
        yield _Cell(name="tflops", label="", value=compact(tflops), style="speed", unit=" TFLOP/s")


def _number(value: float, *, digits: int = 4) -> str:
    """Return a number with `digits` decimals; a very small or large one in scientific notation."""
    plain = not math.isfinite(value) or value == 0 or 1e-3 <= abs(value) < 1e5
    return f"{value:.{digits}f}" if plain else f"{value:.2e}"


def _problems(interval: LogInterval) -> Iterator[str]:
    """Yield the numbers of steps that were skipped, or whose loss is not finite."""
    if interval.skipped_steps:
        yield f"{interval.skipped_steps} skipped"
    if interval.nonfinite_steps:
        yield f"{interval.nonfinite_steps} NaN"
