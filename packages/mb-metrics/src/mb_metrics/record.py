"""The records that go to every sink: a row per step, a summary per log interval, an evaluation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mb_metrics.names import CONSUMED_SAMPLES, PERPLEXITY, VALIDATION, is_loss
from mb_metrics.throughput import ThroughputRates

_LARGEST_EXPONENT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRow:
    """What one step measured, on the host.

    A value may be negative, infinite or NaN: it is passed on as it is.
    """

    step: int
    """Steps done, this one included."""
    time: float
    """When the step was recorded, in seconds since the epoch."""
    values: Mapping[str, float]
    """Metric name to value, in the order in which they were given."""
    skipped: bool
    """Whether the optimizer left the weights as they were."""
    consumed_samples: int | None
    """Samples (sequences) consumed since the run began; None: not known."""

    @property
    def values_and_samples(self) -> dict[str, float]:
        """The values, and the samples consumed, where known, as a metric of their own."""
        return _with_samples(self.values, self.consumed_samples)

    @property
    def has_nonfinite_loss(self) -> bool:
        """Whether a loss of this step is NaN or infinite."""
        return any(is_loss(name) and not math.isfinite(value) for name, value in self.values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogInterval:
    """What happened since the summary before."""

    rows: tuple[MetricsRow, ...]
    """The steps of the interval, at least one; the last one carries the rates as metrics, too."""
    total_steps: int | None
    """Length of the run in steps."""
    rates: ThroughputRates
    """Step time, throughput and MFU, pauses left out."""
    seconds_left: float | None = None
    """Estimated time to the end of the run, pauses like those so far included; None: not known."""

    @property
    def last(self) -> MetricsRow:
        """The newest step."""
        return self.rows[-1]

    @property
    def skipped_steps(self) -> int:
        """How many steps the optimizer skipped."""
        return sum(row.skipped for row in self.rows)

    @property
    def nonfinite_steps(self) -> int:
        """How many steps, skipped or not, had a NaN or infinite loss."""
        return sum(row.has_nonfinite_loss for row in self.rows)

    @property
    def mean_losses(self) -> dict[str, float]:
        """Mean of each loss over the steps that were not skipped, or over all when every step was."""
        rows = [row for row in self.rows if not row.skipped] or self.rows
        sums: dict[str, tuple[float, int]] = {}
        for row in rows:
            for name, value in row.values.items():
                if is_loss(name):
                    total, count = sums.get(name, (0.0, 0))
                    sums[name] = (total + value, count + 1)
        return {name: total / count for name, (total, count) in sums.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Losses on held-out data after a step."""

    step: int
    """Steps done before the evaluation."""
    time: float
    """When it was recorded, in seconds since the epoch."""
    losses: Mapping[str, float]
    """Loss name to mean loss, under the names of training ("lm loss")."""
    consumed_samples: int | None
    """Training samples consumed before the evaluation; None: not known."""
    perplexities: bool = True
    """Whether `values` has perplexities."""

    @property
    def values(self) -> dict[str, float]:
        """The losses and their perplexities under the names that sinks write."""
        named: dict[str, float] = {}
        for name, loss in self.losses.items():
            named[name + VALIDATION] = loss
            if self.perplexities:
                named[name + PERPLEXITY] = perplexity(loss)
        return named

    @property
    def values_and_samples(self) -> dict[str, float]:
        """The values, and the samples consumed, where known, as a metric of their own."""
        return _with_samples(self.values, self.consumed_samples)


def _with_samples(values: Mapping[str, float], consumed_samples: int | None) -> dict[str, float]:
    samples = {} if consumed_samples is None else {CONSUMED_SAMPLES: float(consumed_samples)}
    return samples | dict(values)


def perplexity(loss: float) -> float:
    """Return exp(loss), the exponent capped at 20; NaN stays NaN."""
    return math.exp(loss if math.isnan(loss) else min(_LARGEST_EXPONENT, loss))
