"""Recorder of training metrics, called by a training loop after each step."""

import atexit
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from mb_metrics.names import BATCH_SIZE
from mb_metrics.recorder.arguments import (
    checked_step,
    checked_time_unit,
    require_count,
    require_positive,
    resolve_aliases,
)
from mb_metrics.recorder.clock import DeviceTimer, StepClock, StepSpan, TimedStep, Timer
from mb_metrics.recorder.interval import IntervalSettings, IntervalWork, current_world_size
from mb_metrics.recorder.record import Evaluation, MetricsRow
from mb_metrics.recorder.recorded_steps import (
    RankReduction,
    RecordedStep,
    Reduction,
    Sampler,
    StepBatch,
    Value,
    split_device_values,
)
from mb_metrics.sinks.sink import FanOutSink, Sink, SinkFailure, sink_list

_logger = logging.getLogger(__name__)
_UNREAD = "metrics of the last steps could not be read from the device: %r"


class Metrics:
    """Recorder of training metrics that writes to sinks without synchronizing with the device.

    The life of a step:

    1. `record` stores numbers on the host, copies tensors into packed vectors on their device and marks the step's end.
    2. A step divisible by `log_interval` ends the interval: samplers add their metrics to its row.
    3. With a `group`, one collective reduces all metrics of the interval; one asynchronous copy to the host starts.
    4. The first `record` that finds the copy finished reads it, at the latest the end of the next interval.
    5. Each sink receives the rows (`write_rows`), then their summary (`write_interval`). A sink that raises is counted.

    `record` waits for the device only at the end of an interval, for the copy of the previous interval. `flush`,
    `evaluation` and `close` wait for all copies.

    Throughput counts the time between records, starting at construction (or at `with`). Put work that is not training
    into `with metrics.pause()`. If CUDA is in use, times come from events on the current stream and are read when the
    copy of the interval has arrived: the host runs ahead of the device, so its clock would measure kernel launches.
    Throughput is averaged over `throughput_window` steps, by default over the log interval; TFLOP/s and MFU refer to
    the log interval.

    Pass sinks on one rank only. Without sinks and without `group`, nothing is recorded and there is no overhead.

    With a `group`, the metrics in `reduce` are reduced over its ranks at the end of a log interval, on the device, all
    steps and metrics in one collective. `record`, `evaluation`, `flush`, `close` and `with` are then collective over
    the group: each rank makes the same calls, with the same steps. A rank that does not have a metric (a loss exists
    only on the last pipeline stage) omits it. If an exception leaves the `with` block, no collective is started: the
    steps since the last log interval are written without the reduced metrics.

    Args:
        sinks: Destinations of the records. A sink that raises never ends the run; see `failures`.
        log_interval: Steps between summaries.
        total_steps: Length of the run in steps, for the console and the time left.
        total_samples: Length of the run in samples; makes the time left accurate while the batch size grows.
        world_size: Number of devices that share the work; samples and tokens are counted over all of them. None: the
            size of the initialized process group, else WORLD_SIZE, else 1.
        flops_per_token: Floating-point operations per token, forward and backward; None: no TFLOP/s.
        peak_tflops: Dense peak TFLOP/s of one device, the denominator of MFU; None: no MFU.
        throughput_window: Steps over which throughput is averaged; None: `log_interval`.
        micro_batch_size: Sequences per microbatch and rank, recorded with the throughput.
        group: Torch process group over which the metrics in `reduce` are reduced.
        reduce: Metric name to "mean", "sum" or "max" over the ranks; identical on every rank.
        samplers: Functions called with the step at the end of each log interval; the metrics that they return (memory,
            energy) are added to the last row of the interval.
        time_unit: If set, record time spent and time left ("time/total", "time/remaining_estimate") in seconds,
            minutes, hours or days at each log interval.
        aliases: Additional metric names for existing dashboards: "bridge" for the names of Megatron-Bridge, or a
            mapping from name to additional name.
        clock: Monotonic clock, in seconds; None: CUDA events if CUDA is in use, `time.perf_counter` otherwise.
        timer: Timer used instead of `clock`.
        wall_clock: Clock that returns seconds since the epoch.

    Raises:
        TypeError: a number is none, or an object is not a sink.
        ValueError: a number is not positive; `reduce`, `time_unit` or `aliases` has an unsupported value; `reduce` is
            given without `group`.
    """

    def __init__(  # noqa: PLR0913 - settings, each by name
        self,
        sinks: Sequence[Sink] | Sink,
        *,
        log_interval: int = 10,
        total_steps: int | None = None,
        total_samples: int | None = None,
        world_size: int | None = None,
        flops_per_token: float | None = None,
        peak_tflops: float | None = None,
        throughput_window: int | None = None,
        micro_batch_size: int | None = None,
        group: object | None = None,
        reduce: Mapping[str, Reduction] | None = None,
        samplers: Sequence[Sampler] = (),
        time_unit: str | None = None,
        aliases: Literal["bridge"] | Mapping[str, str] | None = None,
        clock: Callable[[], float] | None = None,
        timer: Timer | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        world_size = current_world_size() if world_size is None else world_size
        require_positive(
            log_interval=log_interval,
            total_steps=total_steps,
            total_samples=total_samples,
            world_size=world_size,
            flops_per_token=flops_per_token,
            peak_tflops=peak_tflops,
            throughput_window=throughput_window,
            micro_batch_size=micro_batch_size,
        )
        sinks = sink_list(sinks)
        self._rank_reduction = RankReduction(group, reduce) if reduce else None
        self._samplers = tuple(samplers)
        self._aliases = resolve_aliases(aliases)
        self._sinks = FanOutSink(sinks)
        self._active = bool(sinks) or self._rank_reduction is not None
        self._log_interval = log_interval
        self._settings = IntervalSettings(
            world_size=world_size,
            flops_per_token=flops_per_token,
            peak_tflops=peak_tflops,
            micro_batch_size=micro_batch_size,
            total_steps=total_steps,
            total_samples=total_samples,
            time_unit=checked_time_unit(time_unit),
        )
        # only a rank that writes reads the times
        host_or_device = DeviceTimer(clock or time.perf_counter, events=clock is None and bool(sinks))
        self._clock = StepClock(timer or host_or_device)
        self._wall_clock = wall_clock
        self._closed = False
        self._detached = False
        self._exit_close = ExitClose(self._close_at_exit)
        self._before_close: list[Callable[[], None]] = []
        # The way of a step: `_steps` and `_work`, then `_in_flight`, then `_rows`. `flush` empties `_steps` only, so
        # that the interval continues: its work and its rows stay until its summary is written.
        self._steps: list[RecordedStep] = []  # not on the way to the host yet
        self._work: list[TimedStep] = []  # since the previous summary
        self._window: deque[TimedStep] = deque(maxlen=throughput_window or log_interval)
        # the second is set for the last batch of an interval
        self._in_flight: deque[tuple[StepBatch, IntervalWork | None]] = deque()
        self._rows: list[MetricsRow] = []  # written since the previous summary

    def __enter__(self) -> "Metrics":
        self.restart_clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._detached = True
            self._sinks.fail()
        try:
            self.close()
        except RuntimeError as unread:  # the device failed; the error that ended the run takes precedence
            if error is None:
                raise
            _logger.error(_UNREAD, unread)

    @property
    def log_interval(self) -> int:
        """Steps between summaries."""
        return self._log_interval

    @property
    def failures(self) -> tuple[SinkFailure, ...]:
        """Failures of the sinks so far; `close` logs them."""
        return self._sinks.failures

    def record(
        self,
        step: int,
        values: Mapping[Any, Value],
        *,
        samples: int | None = None,
        tokens: int | None = None,
        skipped: bool = False,
        consumed_samples: int | None = None,
        span: StepSpan | None = None,
    ) -> None:
        """Record the metrics of one step. Call it once per step, after the step.

        Args:
            step: Completed steps, including this one; it must increase from call to call.
            values: Metric name to number, torch tensor with one element, or None for "not measured". Tensors are
                copied on their device and may be overwritten afterwards. A key may be a tuple of names, with a vector
                that has an element for each: `{("load/0", "load/1"): loads}` copies one tensor.
            samples: Sequences in this step, over all devices; also recorded as "batch-size".
            tokens: Tokens in this step, over all devices.
            skipped: True if the optimizer skipped the update; skipped steps are excluded from mean losses.
            consumed_samples: Sequences consumed since the start of the run. None: the sum of `samples`, if the first
                record has the first step of the run (after a resume the number is not known).
            span: Result of `end_step`, if the step ended before this call; None: it ends now.

        Raises:
            TypeError: a value is neither a number nor a tensor that this rank can read without a collective; the step
                is not an integer, or a count not a number.
            ValueError: a tensor does not have exactly one element; the step does not increase; a count is negative;
                `close` was called.
        """
        if not isinstance(values, Mapping):
            raise TypeError(
                f"metrics: {values!r:.50} has no name. Pass the metrics of a step by name: record({step}, "
                f"{{'lm loss': {values!r:.50}}})."
            )
        if not self._active:
            return
        if type(step) is not int:
            step = checked_step(step)
        # The usual step makes no calls here: this method runs once per step, and the host may be the bottleneck.
        are_usual_counts = type(samples) is int and type(tokens) is int and samples >= 0 and tokens >= 0
        if not are_usual_counts:
            require_count("samples", samples)
            require_count("tokens", tokens)
        self._require_recordable(step)
        numbers, packed = split_device_values(values)
        done = self._clock.end_step(
            step, samples=samples, tokens=tokens, consumed_samples=consumed_samples, span=span
        )
        if samples is not None:
            numbers.setdefault(BATCH_SIZE, samples / done.span.steps)
        row = MetricsRow(
            step=step,
            time=self._wall_clock(),
            values=numbers,
            skipped=skipped,
            consumed_samples=done.consumed_samples,
        )
        self._steps.append(RecordedStep(row=row, packed=packed))
        self._work.append(done)
        self._window.append(done)
        if self._in_flight:
            self._drain(wait=False)
        if step % self._log_interval == 0:
            self._end_interval()

    def evaluation(
        self, step: int, losses: Mapping[str, Value], *, consumed_samples: int | None = None
    ) -> None:
        """Record validation losses, under their training names; waits for the device.

        Sinks write each loss as "<name> validation" and its exponential as "<name> validation ppl".

        Raises:
            TypeError: a loss is neither a number nor a tensor that this rank can read without a collective; the step is
                not an integer.
            ValueError: a tensor does not have exactly one element; `close` was called.
        """
        if not self._active:
            return
        step = checked_step(step)
        self._require_recordable(None)
        self.flush()
        numbers, packed = split_device_values(losses)
        if consumed_samples is None and self._clock.last is not None:
            consumed_samples = self._clock.last.consumed_samples
        row = MetricsRow(
            step=step,
            time=self._wall_clock(),
            values=numbers,
            skipped=False,
            consumed_samples=consumed_samples,
        )
        batch = self._batch([RecordedStep(row=row, packed=packed)])
        if batch is not None:
            (row,) = batch.rows()
            self._sinks.write_evaluation(
                Evaluation(step=step, time=row.time, losses=row.values, consumed_samples=consumed_samples)
            )

    def keep_file(self, path: str | Path, name: str | None = None) -> None:
        """Store a file or folder in the sinks that support it (MLflow, W&B), under `name` or its file name."""
        self._sinks.write_file(Path(path), name or Path(path).name)

    def pause(self) -> AbstractContextManager[None]:
        """Exclude the time in this block (an evaluation, a checkpoint) from throughput and step time."""
        return self._clock.pause()

    def end_step(self, *, steps: int = 1) -> StepSpan:
        """End a step, or several, whose metrics are recorded later, with `record(..., span=)`."""
        return self._clock.end_span(steps=steps)

    def restart_clock(self) -> None:
        """Exclude the time since the end of the last step from the next one."""
        self._clock.restart()

    def before_close(self, complete: Callable[[], None]) -> None:
        """Call a function at the start of `close`, which records what it still holds."""
        self._before_close.append(complete)

    def flush(self) -> None:
        """Write every recorded step to the sinks; waits for the device. Call it when a checkpoint is saved.

        The log interval continues: its summary is written at its end.
        """
        self._flush_to_host(None)
        self._drain(wait=True)

    def close(self) -> None:
        """Write the remaining steps as a shorter interval and close the sinks. A second call does nothing.

        A process that ends without this call makes it at its exit, and logs a line.
        """
        if self._closed:
            return
        for complete in self._before_close:
            complete()
        self._closed = True
        self._exit_close.cancel()
        try:
            if self._work:
                self._end_interval()
            self._drain(wait=True)
        finally:
            self._sinks.close()

    def _close_at_exit(self, failed: bool) -> None:
        self._detached = True  # other ranks may have ended: start no collective
        if failed:
            self._sinks.fail()
        try:
            self.close()
        except RuntimeError as unread:
            _logger.error(_UNREAD, unread)

    def _require_recordable(self, step: int | None) -> None:
        """Reject a call after `close`, or a step that does not increase; None: not the record of a step."""
        if self._closed:
            raise ValueError(
                "metrics: record() or evaluation() after close(). The sinks are closed. Record before close(), or "
                "create a new Metrics object."
            )
        last = self._clock.last
        if step is not None and last is not None and step <= last.step:
            raise ValueError(
                f"metrics: step {step} was recorded after step {last.step}. Steps must increase. Record after the "
                "optimizer step, not after each microbatch."
            )
        if self._clock.last is None:
            self._exit_close.arm()

    def _end_interval(self) -> None:
        if not self._closed:
            self._exit_close.renew()
        work = IntervalWork(
            settings=self._settings,
            first=self._clock.first or self._work[-1],
            work=tuple(self._work),
            window=_newest(self._window, self._window.maxlen or 1),
        )
        self._work = []
        if self._steps:
            self._steps[-1] = self._steps[-1].with_samples(self._samplers)
        # One interval behind: the previous copy had a full interval to finish, so this wait is short. Draining before
        # the next copy starts keeps at most one batch in flight.
        self._drain(wait=True)
        self._flush_to_host(work)
        self._drain(wait=False)

    def _flush_to_host(self, work: IntervalWork | None) -> None:
        if self._steps or work is not None:
            batch = self._batch(self._steps)
            if batch is not None:
                self._in_flight.append((batch, work))
            self._steps = []

    def _batch(self, steps: Sequence[RecordedStep]) -> StepBatch | None:
        """Start the copy of some steps; None on a rank that only takes part in the reduction. Collective."""
        reduction, has_sinks = self._rank_reduction, len(self._sinks) > 0
        if reduction is None or not steps:
            return StepBatch(steps) if has_sinks else None
        if self._detached:
            return StepBatch(reduction.without_reduced(steps)) if has_sinks else None
        return reduction.reduce_batch(steps, read=has_sinks)

    def _drain(self, *, wait: bool) -> None:
        while self._in_flight and (wait or _ready(*self._in_flight[0])):
            batch, work = self._in_flight.popleft()
            rows = batch.rows()
            if rows and work is not None:  # the copy has arrived, so reading times adds no wait
                rows[-1] = replace(rows[-1], values={**rows[-1].values, **work.values})
            rows = [self._aliased(row) for row in rows]
            if rows:
                self._sinks.write_rows(rows)
                self._rows.extend(rows)
            if work is not None:
                self._sinks.write_interval(work.summary(tuple(self._rows)))
                self._rows = []

    def _aliased(self, row: MetricsRow) -> MetricsRow:
        more = {alias: row.values[name] for name, alias in self._aliases.items() if name in row.values}
        return replace(row, values={**row.values, **more}) if more else row


def _newest(work: Sequence[TimedStep], steps: int) -> list[TimedStep]:
    """Return the newest work of at most `steps` steps, at least one record, which may be of several steps."""
    newest: list[TimedStep] = []
    for step in reversed(work):
        steps -= step.span.steps
        if steps < 0 and newest:
            break
        newest.append(step)
    return newest


def _ready(batch: StepBatch, work: IntervalWork | None) -> bool:
    return batch.ready() and (work is None or work.ready())


class ExitClose:
    """Call of `close` at the end of the process, unless it is cancelled; a line of the log reports it once.

    Args:
        close: Function that closes the recorder. It is called with True if an exception ends the program.
    """

    def __init__(self, close: Callable[[bool], None]) -> None:
        self._close = close
        self._process: int | None = None

    def arm(self) -> None:
        """Register the call, if it is not registered."""
        if self._process is None:
            self._process = os.getpid()
            atexit.register(self._run)

    def renew(self) -> None:
        """Register the call again: functions registered last are called first, before trackers end their runs."""
        self.cancel()
        self.arm()

    def cancel(self) -> None:
        """Remove the call."""
        self._process = None
        atexit.unregister(self._run)

    def _run(self) -> None:
        if self._process == os.getpid():  # a forked process leaves the files to its parent
            _report_once()
            self._close(getattr(sys, "last_value", None) is not None)


@cache
def _report_once() -> None:
    _logger.warning(
        "metrics: close() was not called; the last records are written and the sinks are closed at exit. Use "
        "`with Metrics(...)`, or call close()."
    )
