"""Work of a log interval: its rates and the time left, read after its values have arrived on the host."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mb_metrics.names import (
    GLOBAL_BATCH_SIZE,
    ITERATION_TIME,
    MICRO_BATCH_SIZE,
    THROUGHPUT_WINDOW,
    TIME_BATCHES,
    TIME_LEFT,
    TIME_SAMPLES,
    TIME_TOKENS,
    TIME_TOTAL,
    WORLD_SIZE,
)
from mb_metrics.recorder.clock import TimedStep
from mb_metrics.recorder.record import LogInterval, MetricsRow, ThroughputRates

SECONDS: Mapping[str, float] = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSettings:
    """Settings of a run on which the rates and times of its log intervals depend; None: not known."""

    world_size: int
    """Devices that share the work."""
    flops_per_token: float | None
    """Floating-point operations of one token, forward and backward."""
    peak_tflops: float | None
    """Dense peak TFLOP/s of one device."""
    micro_batch_size: int | None
    """Sequences per microbatch and rank."""
    total_steps: int | None
    """Length of the run in steps."""
    total_samples: int | None
    """Length of the run in samples."""
    time_unit: str | None
    """Unit of the `time/` metrics; None: none of them."""


@dataclass(frozen=True, kw_only=True)
class IntervalWork:
    """The steps of a log interval and of the throughput window that ends with it; times wait for the device."""

    settings: IntervalSettings
    first: TimedStep
    """First step of this job."""
    work: Sequence[TimedStep]
    """Steps since the previous summary, at least one."""
    window: Sequence[TimedStep]
    """Steps over which throughput is averaged."""

    def ready(self) -> bool:
        """Return True if times can be read without waiting for the device."""
        last = self.work[-1].span
        return last.timer.ready(last.end)

    def summary(self, rows: tuple[MetricsRow, ...]) -> LogInterval:
        """Return the summary of these rows."""
        return LogInterval(
            rows=rows,
            total_steps=self.settings.total_steps,
            rates=self.rates,
            seconds_left=self.seconds_left,
        )

    @property
    def values(self) -> dict[str, float]:
        """Time-dependent metrics of the last row of the interval."""
        rates, settings, last = self.rates, self.settings, self.work[-1]
        metrics = {ITERATION_TIME: rates.step_seconds, WORLD_SIZE: float(settings.world_size)}
        window = sum_work(self.window)
        throughput = window.rates(world_size=settings.world_size)
        if throughput:
            # all other rates are those of the interval
            if window.steps != sum(step.span.steps for step in self.work):
                throughput[THROUGHPUT_WINDOW] = float(window.steps)
            per_step = None if last.samples is None else last.samples / last.span.steps
            sizes = {MICRO_BATCH_SIZE: settings.micro_batch_size, GLOBAL_BATCH_SIZE: per_step}
            throughput |= {name: float(size) for name, size in sizes.items() if size is not None}
        metrics |= throughput | rates.values
        return metrics if settings.time_unit is None else metrics | self._times(SECONDS[settings.time_unit])

    @cached_property
    def rates(self) -> ThroughputRates:
        """Rates of the interval; only the step time if no time has passed."""
        done, settings = sum_work(self.work), self.settings
        per_second = done.tokens / done.seconds if done.tokens is not None and done.seconds > 0 else None
        tflops = per_device = mfu = None
        if per_second is not None and settings.flops_per_token is not None:
            tflops = per_second * settings.flops_per_token / 1e12
            per_device = tflops / settings.world_size
            mfu = per_device / settings.peak_tflops if settings.peak_tflops is not None else None
        return ThroughputRates(
            step_seconds=done.seconds / done.steps,
            tokens_per_second=per_second,
            tflops_per_device=per_device,
            tflops=tflops,
            mfu=mfu,
            peak_tflops=settings.peak_tflops,
        )

    @cached_property
    def seconds_left(self) -> float | None:
        """Time to the end of the run as of the last step; None: the length of the run is not known.

        It includes evaluations and checkpoints at the rate observed so far: the work since the end of the first step of
        this job, divided by the time since then. Work is counted in samples if the length in samples and the consumed
        samples are known, so that a growing batch size does not bias the estimate; otherwise in steps. The first step
        includes compilation and warm-up and is used only while it is the only one.
        """
        first, last, total_samples = self.first, self.work[-1], self.settings.total_samples
        alone = first is last
        before = first.consumed_samples
        if alone and before is not None:
            before = None if first.samples is None else before - first.samples
        if total_samples is not None and last.consumed_samples is not None and before is not None:
            done, left = last.consumed_samples - before, total_samples - last.consumed_samples
        elif self.settings.total_steps is not None:
            done = last.step - first.step + alone * first.span.steps
            left = self.settings.total_steps - last.step
        else:
            return None
        begin = first.span.begin if alone else first.span.end
        seconds = last.span.timer.seconds(begin, last.span.end)
        return seconds / done * max(0, left) if done > 0 else None

    def _times(self, unit_seconds: float) -> dict[str, float]:
        """Return time spent, time left and work done since the start of the run.

        Tokens are extrapolated from the consumed samples and the tokens per sample of this step.
        """
        last, left = self.work[-1], self.seconds_left
        seconds = last.span.timer.seconds(self.first.span.begin, last.span.end)
        times = {TIME_TOTAL: seconds / unit_seconds}
        if left is not None:
            times[TIME_LEFT] = left / unit_seconds
        if last.consumed_samples is not None:
            if last.tokens is not None and last.samples:
                times[TIME_TOKENS] = last.consumed_samples * last.tokens / last.samples
            times[TIME_SAMPLES] = float(last.consumed_samples)
        return times | {TIME_BATCHES: float(last.step)}


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


def sum_work(steps: Collection[TimedStep]) -> WorkTotals:
    """Return the work of several steps with their time; waits for the device."""
    return WorkTotals(
        seconds=sum(step.span.seconds for step in steps),
        steps=sum(step.span.steps for step in steps),
        samples=sum_if_known([step.samples for step in steps]),
        tokens=sum_if_known([step.tokens for step in steps]),
    )


def sum_if_known(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None if a count is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def current_world_size() -> int:
    """Return the number of ranks: of the initialised process group, else WORLD_SIZE, else 1. Does not import torch.

    Raises:
        ValueError: WORLD_SIZE is not a positive integer.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"WORLD_SIZE: {text!r} is not a positive integer, and rates per device are divided by it. Launchers such "
            "as torchrun set it for each process. Correct or unset the variable, or pass world_size."
        )
    return int(text)
