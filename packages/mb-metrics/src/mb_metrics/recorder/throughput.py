"""Throughput over a window of steps."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from mb_metrics.names import MFU, TFLOPS, TFLOPS_PER_DEVICE
from mb_metrics.recorder.clock import TimedStep
from mb_metrics.world_size import current_world_size


class BatchSizes(Protocol):
    """Fields of a training configuration that `report_throughput` reads."""

    @property
    def global_batch_size(self) -> int:
        """Sequences per step, over all data-parallel ranks."""

    @property
    def micro_batch_size(self) -> int:
        """Sequences per microbatch and rank."""


def report_throughput(
    train_config: BatchSizes,
    iteration: int,
    seq_length: int,
    history_wct: Sequence[float],
    window_size: int,
    *,
    world_size: int | None = None,
    consumed_samples: Sequence[int] | None = None,
) -> dict[str, float]:
    """Return rates over the newest `window_size` steps, under their `throughput/` names.

    `history_wct` contains a time stamp in seconds after each step, oldest first; n + 1 stamps delimit n steps, and the
    rates count n steps. `consumed_samples`, of the same length as the history, makes the rates accurate while the
    batch size changes; without it each step counts `train_config.global_batch_size` sequences. Rates per device are
    divided by `world_size`, by default the size of the initialized process group, else WORLD_SIZE, else 1. `iteration`
    is not read; Megatron-Bridge passes it at this position.

    Returns an empty mapping if there are fewer than `window_size` stamps, or if no time has passed.

    Raises:
        ValueError: `consumed_samples` and `history_wct` differ in length, or WORLD_SIZE is not a positive integer.
    """
    if consumed_samples is not None and len(consumed_samples) != len(history_wct):
        raise ValueError(
            f"report_throughput: {len(consumed_samples)} sample counts for {len(history_wct)} time stamps. Each stamp "
            "needs the number of samples consumed at that time. Append to both after each step."
        )
    stamps = list(history_wct)[-(window_size + 1) :]
    steps = len(stamps) - 1
    if len(history_wct) < window_size or steps < 1 or stamps[-1] <= stamps[0]:
        return {}
    samples = steps * train_config.global_batch_size
    if consumed_samples is not None:
        samples = consumed_samples[-1] - consumed_samples[-1 - steps]
    sizes = {
        "throughput/micro_batch_size": float(train_config.micro_batch_size),
        "throughput/global_batch_size": float(train_config.global_batch_size),
    }
    seconds = stamps[-1] - stamps[0]
    totals = WorkTotals(seconds=seconds, steps=steps, samples=samples, tokens=samples * seq_length)
    devices = current_world_size() if world_size is None else world_size
    return totals.rates(world_size=devices) | sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTotals:
    """Amount of work in a period of time."""

    seconds: float
    steps: int
    samples: int | None
    """Sequences over all devices; None: not known for every step."""
    tokens: int | None
    """Tokens over all devices; None: not known for every step."""

    def rates(self, *, world_size: int) -> dict[str, float]:
        """Return the `throughput/` metrics of the job and per device; empty if no time has passed."""
        if self.seconds <= 0:
            return {}
        counts = {"batches": self.steps, "samples": self.samples, "tokens": self.tokens}
        rates = {
            f"{name}_per_sec": count / self.seconds for name, count in counts.items() if count is not None
        }
        job = {f"throughput/{name}": rate for name, rate in rates.items()}
        return job | {f"throughput/device/{name}": rate / world_size for name, rate in rates.items()}


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
class RateCalculator:
    """Conversion of work to rates."""

    world_size: int
    """Devices that share the work."""
    flops_per_token: float | None
    """Floating-point operations of one token, forward and backward."""
    peak_tflops: float | None
    """Dense peak TFLOP/s of one device."""

    def rates(self, done: WorkTotals) -> ThroughputRates:
        """Return the rates of the work in `done`; only the step time if no time has passed."""
        per_second = done.tokens / done.seconds if done.tokens is not None and done.seconds > 0 else None
        tflops = mfu = None
        if per_second is not None and self.flops_per_token is not None:
            tflops = per_second * self.flops_per_token / 1e12
            mfu = tflops / self.world_size / self.peak_tflops if self.peak_tflops is not None else None
        return ThroughputRates(
            step_seconds=done.seconds / done.steps,
            tokens_per_second=per_second,
            tflops_per_device=tflops / self.world_size if tflops is not None else None,
            tflops=tflops,
            mfu=mfu,
            peak_tflops=self.peak_tflops,
        )


def sum_work(steps: Collection[TimedStep]) -> WorkTotals:
    """Return the work of several steps with their time; waits for the device."""
    return WorkTotals(
        seconds=sum(step.seconds for step in steps),
        steps=sum(step.steps for step in steps),
        samples=_sum_if_known([step.samples for step in steps]),
        tokens=_sum_if_known([step.tokens for step in steps]),
    )


def _sum_if_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
