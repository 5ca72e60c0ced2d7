"""Console output: two lines per log interval, in the format that log parsers for Megatron trainers expect."""

import math
import sys
import time
from collections.abc import Collection
from typing import Protocol

from mb_metrics import names
from mb_metrics.record import Evaluation, LogInterval, perplexity
from mb_metrics.sink import Sink
from mb_metrics.throughput import ThroughputRates


class TextStream(Protocol):
    """Output stream for text: a file, or an object with its `write` and `flush` methods."""

    def write(self, text: str, /) -> object:
        """Write a string."""

    def flush(self) -> None:
        """Flush the written text."""


class ConsoleSink(Sink):
    """Sink that prints the iteration line and the step-time line of each log interval, and a line per evaluation.

    `close` leaves the stream open: the caller owns it.

    Args:
        stream: Output stream; None: the value of sys.stdout when a line is printed.
        throughput: If True, the iteration line shows TFLOP/s per device, if known.
        losses: Names of the metrics shown as losses; None: every metric that is recorded as a loss.
        evaluations: Print a line per evaluation; False if the training loop prints them itself.
    """

    def __init__(
        self,
        stream: TextStream | None = None,
        *,
        throughput: bool = False,
        losses: Collection[str] | None = None,
        evaluations: bool = True,
    ) -> None:
        self._evaluations = evaluations
        self._stream = stream
        self._throughput = throughput
        self._losses = losses

    def write_interval(self, interval: LogInterval) -> None:
        """Print two lines."""
        self._print(iteration_line(interval, throughput=self._throughput, losses=self._losses))
        line = step_time_line(interval.rates)
        memory = interval.last.values.get(names.PEAK_MEMORY)
        line += _piece(" | peak memory: {:.1f} GB", memory)
        if interval.seconds_left is not None:
            line += f" | time left: {_duration(interval.seconds_left)}"
        self._print(line)

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Print one line, if `evaluations` is True."""
        if self._evaluations:
            self._print(evaluation_line(evaluation))

    def _print(self, line: str) -> None:
        print(line, file=self._stream or sys.stdout, flush=True)


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
    interval: LogInterval, *, throughput: bool = False, losses: Collection[str] | None = None
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
    pieces = [
        f"[{stamp}] iteration {row.step:8d}{total}",
        _piece("consumed samples: {:12d}", row.consumed_samples),
        _piece("skipped samples: {:12.0f}", skipped_samples if skipped_samples > 0 else None),
        f"elapsed time per iteration (ms): {1000 * rates.step_seconds:.1f}",
        _piece("throughput per GPU (TFLOP/s/GPU): {:.1f}", tflops),
        _piece("energy per GPU (J/iter/GPU): {:.1f}", values.get(names.ENERGY)),
        _piece("power per GPU (W/GPU): {:.1f}", values.get(names.POWER)),
        _piece("learning rate: {:.6E}", values.get(names.LEARNING_RATE)),
        _piece("global batch size: {:5.0f}", values.get(names.BATCH_SIZE)),
        *(
            f"{name}: {mean:.6E}"
            for name, mean in interval.mean_losses.items()
            if losses is None or name in losses
        ),
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
    """Return the line of an evaluation: each loss and its perplexity."""
    pieces = "".join(
        f" {name} value: {loss:.6E} | {name} PPL: {perplexity(loss):.6E} |"
        for name, loss in evaluation.losses.items()
    )
    return f" validation loss at iteration {evaluation.step} |{pieces}"
