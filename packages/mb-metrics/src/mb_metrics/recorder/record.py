"""Records that every sink receives: a row per step, a summary per log interval, an evaluation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mb_metrics.names import (
    CONSUMED_SAMPLES,
    MFU,
    PERPLEXITY,
    TFLOPS,
    TFLOPS_PER_DEVICE,
    VALIDATION,
    is_averaged,
    is_loss,
)

_LARGEST_EXPONENT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRow:
    """Metrics of one step, on the host.

    Negative, infinite and NaN values are preserved.
    """

    step: int
    """Completed steps, including this one."""
    time: float
    """Time at which the step was recorded, in seconds since the epoch."""
    values: Mapping[str, float]
    """Metric name to value, in the order of recording."""
    skipped: bool
    """True if the optimizer skipped the update."""
    consumed_samples: int | None
    """Samples (sequences) consumed since the start of the run; None: not known."""

    @property
    def values_and_samples(self) -> dict[str, float]:
        """The values and, if known, the consumed samples as an additional metric."""
        return _with_samples(self.values, self.consumed_samples)

    @property
    def has_nonfinite_loss(self) -> bool:
        """True if a loss of this step is NaN or infinite."""
        return any(is_loss(name) and not math.isfinite(value) for name, value in self.values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRates:
    """Rates of a group of steps; None if an input of a rate is not known."""

    step_seconds: float
    """Mean time of a step in seconds."""
    tokens_per_second: float | None
    """Tokens per second over all devices."""
    tflops_per_device: float | None
    """Model TFLOP/s of one device: FLOPs per token times tokens, divided by seconds and world size."""
    tflops: float | None
    """Model TFLOP/s over all devices."""
    mfu: float | None
    """Model FLOPs utilisation: `tflops_per_device` as a fraction of `peak_tflops`."""
    peak_tflops: float | None
    """Denominator of `mfu`: dense peak TFLOP/s of one device, as given by the caller."""

    @property
    def values(self) -> dict[str, float]:
        """Known rates that are recorded as metrics."""
        named = {TFLOPS_PER_DEVICE: self.tflops_per_device, TFLOPS: self.tflops, MFU: self.mfu}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogInterval:
    """Summary of the steps since the previous summary."""

    rows: tuple[MetricsRow, ...]
    """Steps of the interval, at least one; the last one also contains the rates as metrics."""
    total_steps: int | None
    """Length of the run in steps."""
    rates: ThroughputRates
    """Step time, throughput and MFU, pauses excluded."""
    seconds_left: float | None = None
    """Estimated time to the end of the run, in seconds, including pauses at the rate so far; None: not known."""

    @property
    def last(self) -> MetricsRow:
        """The newest step."""
        return self.rows[-1]

    @property
    def skipped_steps(self) -> int:
        """Number of steps that the optimizer skipped."""
        return sum(row.skipped for row in self.rows)

    @property
    def nonfinite_steps(self) -> int:
        """Number of steps, skipped or not, with a NaN or infinite loss."""
        return sum(row.has_nonfinite_loss for row in self.rows)

    @property
    def mean_losses(self) -> dict[str, float]:
        """Mean of each loss and other averaged metric over the steps that were not skipped, or over all if all were."""
        return self.means(is_averaged)

    def means(self, selects: Callable[[str], bool]) -> dict[str, float]:
        """Return the mean of each selected metric, over the same steps as `mean_losses`.

        A step in which a metric other than a loss is NaN is left out: nothing was counted in it.
        """
        rows = [row for row in self.rows if not row.skipped] or self.rows
        sums: dict[str, tuple[float, int]] = {}
        for row in rows:
            for name, value in row.values.items():
                if selects(name):
                    total, count = sums.setdefault(name, (0.0, 0))
                    if is_loss(name) or not math.isnan(value):
                        sums[name] = (total + value, count + 1)
        return {name: total / count if count else math.nan for name, (total, count) in sums.items()}

    @property
    def latest(self) -> dict[str, float]:
        """Newest value of each metric of the interval."""
        return {name: value for row in self.rows for name, value in row.values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Validation losses after a step."""

    step: int
    """Completed steps before the evaluation."""
    time: float
    """Time at which the evaluation was recorded, in seconds since the epoch."""
    losses: Mapping[str, float]
    """Loss name to mean loss, under the training names ("lm loss")."""
    consumed_samples: int | None
    """Training samples consumed before the evaluation; None: not known."""
    perplexities: bool = True
    """If True, `values` contains the perplexities of losses (`names.is_loss`)."""

    @property
    def values(self) -> dict[str, float]:
        """Losses and their perplexities, under the names that sinks write."""
        named: dict[str, float] = {}
        for name, loss in self.losses.items():
            named[name + VALIDATION] = loss
            if self.perplexities and is_loss(name):
                named[name + PERPLEXITY] = perplexity(loss)
        return named

    @property
    def values_and_samples(self) -> dict[str, float]:
        """The values and, if known, the consumed samples as an additional metric."""
        return _with_samples(self.values, self.consumed_samples)


def _with_samples(values: Mapping[str, float], consumed_samples: int | None) -> dict[str, float]:
    samples = {} if consumed_samples is None else {CONSUMED_SAMPLES: float(consumed_samples)}
    return samples | dict(values)


def perplexity(loss: float) -> float:
    """Return exp(loss) with the exponent capped at 20; NaN for NaN."""
    return math.exp(loss if math.isnan(loss) else min(_LARGEST_EXPONENT, loss))
