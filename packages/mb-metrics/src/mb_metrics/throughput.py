"""Throughput over a window of steps."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from mb_metrics.clock import StepTiming
from mb_metrics.names import MFU, TFLOPS, TFLOPS_PER_DEVICE
from mb_metrics.world_size import current_world_size


class BatchSizes(Protocol):
    """What `report_throughput` reads of a training configuration."""

    @property
    def global_batch_size(self) -> int:
        """Sequences per step, of all data-parallel ranks."""

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

    `history_wct` holds a time stamp in seconds after each step, oldest first; n + 1 stamps bound n steps, and n is
    what the rates count. `consumed_samples`, as long as the history, makes them right while the batch size changes;
    without it each step counts `train_config.global_batch_size` sequences. `world_size`, by which the rates per device
    are divided, is by default that of the initialised process group, else WORLD_SIZE, else 1. `iteration` is not read;
    Megatron-Bridge passes it at this position.

    Returns an empty mapping while there are fewer than `window_size` stamps, or when no time has passed.

    Raises:
        ValueError: `consumed_samples` and `history_wct` differ in length, or WORLD_SIZE is not a positive integer.
    """
    if consumed_samples is not None and len(consumed_samples) != len(history_wct):
        raise ValueError(
            f"report_throughput: {len(consumed_samples)} sample counts for {len(history_wct)} time stamps; each stamp "
            "needs the samples consumed by then. Append to both after each step."
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
    """What was done in some time."""

    seconds: float
    steps: int
    samples: int | None
    """Sequences, of all devices together; None: a step did not say."""
    tokens: int | None
    """Tokens, of all devices together; None: a step did not say."""

    def rates(self, *, world_size: int) -> dict[str, float]:
        """Return the `throughput/` metrics, of the whole job and per device; empty when no time has passed."""
        if self.seconds <= 0:
            return {}
        counts = {"batches": self.steps, "samples": self.samples, "tokens": self.tokens}
        known = {
            f"{name}_per_sec": count / self.seconds for name, count in counts.items() if count is not None
        }
        whole = {f"throughput/{name}": rate for name, rate in known.items()}
        return whole | {f"throughput/device/{name}": rate / world_size for name, rate in known.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one step did, before its time is known."""

    timing: StepTiming
    samples: int | None
    """Sequences, of all devices together; None: not given."""
    tokens: int | None
    """Tokens, of all devices together; None: not given."""

    @property
    def totals(self) -> WorkTotals:
        """The same with its seconds; waits for the device."""
        return WorkTotals(seconds=self.timing.seconds, steps=1, samples=self.samples, tokens=self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRates:
    """How fast some steps were; None where what it needs is not known."""

    step_seconds: float
    """Mean time of a step in seconds."""
    tokens_per_second: float | None
    """Tokens per second, of all devices together."""
    tflops_per_device: float | None
    """Model TFLOP/s of one device: FLOPs per token times tokens, by seconds and world size."""
    tflops: float | None
    """The same of all devices together."""
    mfu: float | None
    """Model FLOPs utilisation: `tflops_per_device` as a fraction of `peak_tflops`."""
    peak_tflops: float | None
    """The denominator of `mfu`: dense peak TFLOP/s of one device, as the caller stated it."""

    @property
    def values(self) -> dict[str, float]:
        """The rates that are metrics, those that are known."""
        named = {TFLOPS_PER_DEVICE: self.tflops_per_device, TFLOPS: self.tflops, MFU: self.mfu}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCalculator:
    """What turns work done into rates."""

    world_size: int
    """Devices that share the work."""
    flops_per_token: float | None
    """Floating-point operations of one token, forward and backward."""
    peak_tflops: float | None
    """Dense peak TFLOP/s of one device."""

    def rates(self, done: WorkTotals) -> ThroughputRates:
        """Return the rates of steps that took `done.seconds`; only the step time when no time has passed."""
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


def sum_work(parts: Collection[WorkTotals]) -> WorkTotals:
    """Add up what was done in several steps."""
    return WorkTotals(
        seconds=sum(part.seconds for part in parts),
        steps=sum(part.steps for part in parts),
        samples=_sum_if_known([part.samples for part in parts]),
        tokens=_sum_if_known([part.tokens for part in parts]),
    )


def _sum_if_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
