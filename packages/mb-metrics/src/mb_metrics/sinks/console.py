"""Console output: one short line per log interval, or Megatron's lines, which log parsers for its trainers expect."""

import math
import sys
import time
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Literal, Protocol

from mb_metrics import names
from mb_metrics.recorder.record import Evaluation, LogInterval, ThroughputRates, perplexity
from mb_metrics.report.formatting import duration, short
from mb_metrics.sinks.sink import Sink

COLUMNS = 120
"""Maximum length of a short line."""
_SEPARATOR = " | "


class TextStream(Protocol):
    """Output stream for text: a file, or an object with its `write` and `flush` methods."""

    def write(self, text: str, /) -> object:
        """Write a string."""

    def flush(self) -> None:
        """Flush the written text."""


class ConsoleSink(Sink):
    """Sink that prints each log interval and each evaluation, in lines of at most 120 columns or as Megatron does.

    In the format "short", an interval is one line: losses as means over the interval, the learning rate, the step time,
    and the newest values of the other recorded metrics; those that do not fit into the line are counted. In the format
    "megatron", it is the iteration line and the step-time line, for programs that read logs of Megatron's trainers.

    `close` leaves the stream open: the caller owns it.

    Args:
        stream: Output stream; None: the value of sys.stdout when a line is printed.
        format: "short" or "megatron".
        throughput: If True, TFLOP/s per device is printed, if known.
        losses: Names of the metrics shown as losses; None: every metric that is recorded as a loss.
        learning_rate: Name of the learning rate; None: its usual names, such as "learning-rate", "lr" and "train/lr".
        evaluations: Print a line per evaluation; False if the training loop prints them itself.

    Raises:
        ValueError: `format` is unknown.
    """

    def __init__(
        self,
        stream: TextStream | None = None,
        *,
        format: Literal["short", "megatron"] = "short",
        throughput: bool = False,
        losses: Collection[str] | None = None,
        learning_rate: str | None = None,
        evaluations: bool = True,
    ) -> None:
        if format not in ("short", "megatron"):
            raise ValueError(
                f"ConsoleSink.format: unknown format {format!r}. Supported formats are 'short' and 'megatron'. Choose "
                "one of them."
            )
        self._evaluations = evaluations
        self._stream = stream
        self._short = format == "short"
        self._throughput = throughput
        self._losses = losses
        self._learning_rate = learning_rate

    def write_interval(self, interval: LogInterval) -> None:
        """Print one line, or two in the format "megatron"."""
        line = short_line if self._short else iteration_line
        self._print(
            line(
                interval,
                throughput=self._throughput,
                losses=self._losses,
                learning_rate=self._learning_rate,
            )
        )
        if not self._short:
            self._print_step_time(interval)

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Print one line, if `evaluations` is True."""
        if self._evaluations:
            line = short_evaluation_line if self._short else evaluation_line
            self._print(line(evaluation))

    def _print_step_time(self, interval: LogInterval) -> None:
        line = step_time_line(interval.rates)
        line += _piece(" | peak memory: {:.1f} GB", interval.last.values.get(names.PEAK_MEMORY))
        if interval.seconds_left is not None:
            line += f" | time left: {_duration(interval.seconds_left)}"
        self._print(line)

    def _print(self, line: str) -> None:
        print(line, file=self._stream or sys.stdout, flush=True)


def short_line(
    interval: LogInterval,
    *,
    throughput: bool = False,
    losses: Collection[str] | None = None,
    learning_rate: str | None = None,
) -> str:
    """Return the step, losses, learning rate, speed and other recorded metrics of an interval.

    Losses are means over the interval, other metrics their newest values. What was not recorded is omitted. Metrics
    that exceed the length of the line are counted at its end.
    """
    latest = interval.latest
    rate = learning_rate or names.find_learning_rate(latest)
    means = interval.means(names.is_averaged if losses is None else losses.__contains__)
    total = "" if interval.total_steps is None else f"/{interval.total_steps}"
    shown = {**means, **({rate: latest[rate]} if rate in latest else {})}
    others = {
        name: value
        for name, value in latest.items()
        if name not in shown and name not in names.ADDED_BY_METRICS and not names.is_averaged(name)
    }
    pieces = [f"step {interval.last.step}{total}", *_named(shown), *_problems(interval)]
    return fitted([*pieces, *_speed(interval, throughput=throughput), *_named(others)])


def short_evaluation_line(evaluation: Evaluation) -> str:
    """Return the step, the validation losses and their perplexities of an evaluation."""
    pieces = [f"step {evaluation.step}"]
    for name, loss in evaluation.losses.items():
        pieces.append(f"{name} {short(loss)} on validation data")
        if evaluation.perplexities and names.is_loss(name):
            pieces.append(f"perplexity {short(perplexity(loss))}")
    return fitted(pieces)


def fitted(pieces: Collection[str]) -> str:
    """Join as many of the first pieces as a line holds, and the number of the others."""
    for count in range(len(pieces), 0, -1):
        more = [f"+{len(pieces) - count} more"] if count < len(pieces) else []
        line = _SEPARATOR.join([*islice(pieces, count), *more])
        if len(line) <= COLUMNS:
            return line
    return f"+{len(pieces)} more"


def _named(values: dict[str, float]) -> Iterator[str]:
    return (f"{name} {short(value)}" for name, value in values.items())


def _problems(interval: LogInterval) -> Iterator[str]:
    if interval.skipped_steps:
        yield f"skipped {interval.skipped_steps}"
    if interval.nonfinite_steps:
        yield f"NaN or infinite {interval.nonfinite_steps}"


def _speed(interval: LogInterval, *, throughput: bool) -> Iterator[str]:
    rates = interval.rates
    yield f"{duration(rates.step_seconds)}/step"
    if rates.tokens_per_second is not None:
        yield f"{short(rates.tokens_per_second)} tok/s"
    if throughput and rates.tflops_per_device is not None:
        yield f"{short(rates.tflops_per_device)} TFLOP/s/device"
    if rates.mfu is not None:
        yield f"MFU {100 * rates.mfu:.1f}%"
    if interval.seconds_left is not None:
        yield f"{duration(interval.seconds_left)} left"


def step_time_line(rates: ThroughputRates) -> str:
    """Return the line that benchmark tools parse for step time and TFLOP/s.

    These tools parse only plain decimals, so unknown values and values that are not finite are 0.0. Tokens per second
    and MFU follow, if known; MFU is printed with its denominator.
    """
    line = (
        f"Step Time : {_finite(rates.step_seconds):.2f}s "
        f"GPU utilization: {_finite(rates.tflops_per_device):.1f}MODEL_TFLOP/s/GPU"
    )
    if rates.tokens_per_second is not None:
        line += f" | tokens per second: {rates.tokens_per_second:.1f}"
    if rates.mfu is not None:
        line += f" | MFU: {100 * rates.mfu:.1f}% of {rates.peak_tflops:.1f} TFLOP/s"
    return line


def _duration(seconds: float) -> str:
    """Format hours, minutes and seconds as 1:02:03, preceded by days if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours}:{minutes:02}:{rest:02}"


def _finite(number: float | None) -> float:
    return number if number is not None and math.isfinite(number) else 0.0


def iteration_line(
    interval: LogInterval,
    *,
    throughput: bool = False,
    losses: Collection[str] | None = None,
    learning_rate: str | None = None,
) -> str:
    """Return Megatron's iteration line.

    Losses are means over the interval, including NaN and negative values. The other values are those of its last
    step. Values that were not recorded are omitted, except the loss scale, which is then 1.0.
    """
    row, rates = interval.last, interval.rates
    values = row.values
    total = "" if interval.total_steps is None else f"/{interval.total_steps:8d}"
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.time))
    skipped_samples = values.get(names.SKIPPED_SAMPLES, 0)
    tflops = rates.tflops_per_device if throughput else None
    means = interval.means(names.is_averaged if losses is None else losses.__contains__)
    rate = learning_rate or names.find_learning_rate(values) or names.LEARNING_RATE
    pieces = [
        f"[{stamp}] iteration {row.step:8d}{total}",
        _piece("consumed samples: {:12d}", row.consumed_samples),
        _piece("skipped samples: {:12.0f}", skipped_samples if skipped_samples > 0 else None),
        f"elapsed time per iteration (ms): {1000 * rates.step_seconds:.1f}",
        _piece("throughput per GPU (TFLOP/s/GPU): {:.1f}", tflops),
        _piece("energy per GPU (J/iter/GPU): {:.1f}", values.get(names.ENERGY)),
        _piece("power per GPU (W/GPU): {:.1f}", values.get(names.POWER)),
        _piece("learning rate: {:.6E}", values.get(rate)),
        _piece("global batch size: {:5.0f}", values.get(names.BATCH_SIZE)),
        *(f"{name}: {mean:.6E}" for name, mean in means.items() if name != rate),
        f"loss scale: {values.get(names.LOSS_SCALE, 1.0):.1f}",
        _piece("grad norm: {:.3f}", values.get(names.GRAD_NORM)),
        _piece("num zeros: {:.0f}", values.get(names.NUM_ZEROS)),
        _piece("params norm: {:.3f}", values.get(names.PARAMS_NORM)),
        _piece("max attention logit: {:.3f}", values.get(names.MAX_ATTENTION_LOGIT)),
        f"number of skipped iterations: {interval.skipped_steps:3d}",
        f"number of nan iterations: {interval.nonfinite_steps:3d}",
        _piece("failed checkpoint saves: {:.0f}", values.get(names.FAILED_SAVES)),
    ]
    return " " + "".join(f"{piece} | " for piece in pieces if piece).rstrip()


def _piece(template: str, value: float | None) -> str:
    return "" if value is None else template.format(value)


def evaluation_line(evaluation: Evaluation) -> str:
    """Return the line of an evaluation: each metric, and the perplexity of each loss."""
    pieces = "".join(
        f" {name} value: {value:.6E} |"
        + (f" {name} PPL: {perplexity(value):.6E} |" if names.is_loss(name) else "")
        for name, value in evaluation.losses.items()
    )
    return f" validation loss at iteration {evaluation.step} |{pieces}"
