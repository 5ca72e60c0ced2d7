"""Log interval whose times are read after its values have arrived on the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mb_metrics.names import (
    GLOBAL_BATCH_SIZE,
    ITERATION_TIME,
    MICRO_BATCH_SIZE,
    THROUGHPUT_WINDOW,
    WORLD_SIZE,
)
from mb_metrics.recorder.clock import TimedStep
from mb_metrics.recorder.progress import RunProgress
from mb_metrics.recorder.record import LogInterval, MetricsRow
from mb_metrics.recorder.throughput import RateCalculator, ThroughputRates, sum_work


@dataclass(frozen=True, kw_only=True)
class IntervalWork:
    """The steps of a log interval and of the throughput window that ends with it."""

    work: Sequence[TimedStep]
    """Steps since the previous summary, at least one."""
    window: Sequence[TimedStep]
    """Steps over which throughput is averaged."""
    progress: RunProgress
    rate_calculator: RateCalculator
    micro_batch_size: int | None
    time_unit: str | None
    """Unit of the `time/` metrics; None: none of them."""

    def ready(self) -> bool:
        """Return True if times can be read without waiting for the device."""
        last = self.work[-1]
        return last.timer.ready(last.end)

    @cached_property
    def rates(self) -> ThroughputRates:
        """Rates of the interval; waits for the device."""
        return self.rate_calculator.rates(sum_work(self.work))

    @property
    def values(self) -> dict[str, float]:
        """Time-dependent metrics of the last row of the interval; waits for the device."""
        rates, world_size = self.rates, self.rate_calculator.world_size
        metrics = {ITERATION_TIME: rates.step_seconds, WORLD_SIZE: float(world_size)}
        window = sum_work(self.window)
        throughput = window.rates(world_size=world_size)
        if throughput:
            if window.steps != sum(
                each.steps for each in self.work
            ):  # all other rates are those of the interval
                throughput[THROUGHPUT_WINDOW] = float(window.steps)
            last = self.work[-1]
            per_step = None if last.samples is None else last.samples / last.steps
            sizes = {MICRO_BATCH_SIZE: self.micro_batch_size, GLOBAL_BATCH_SIZE: per_step}
            throughput |= {name: float(size) for name, size in sizes.items() if size is not None}
        metrics |= throughput | rates.values
        if self.time_unit is not None:
            metrics |= self.progress.values(self.time_unit)
        return metrics

    def summary(self, rows: tuple[MetricsRow, ...]) -> LogInterval:
        """Return the summary of these rows; waits for the device."""
        return LogInterval(
            rows=rows,
            total_steps=self.progress.total_steps,
            rates=self.rates,
            seconds_left=self.progress.seconds_left,
        )
