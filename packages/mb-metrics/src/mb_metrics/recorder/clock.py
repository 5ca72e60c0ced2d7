"""Step timing with pauses excluded, by the host clock or by device events."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol


class Timer(Protocol):
    """Recorder of time marks. The seconds between two marks are read later."""

    def mark(self) -> Any:
        """Record a mark, without waiting."""

    def ready(self, mark: Any) -> bool:
        """Return True if the mark has been reached, without waiting."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks; waits until the second has been reached."""


class DeviceTimer:
    """Timer on CUDA events if CUDA is in use, and on the host otherwise.

    Between log intervals the host only queues work and runs ahead of the device, so host times would measure kernel
    launches. An event is reached when the device has finished the work queued before it, so the time between two
    events is the time of the work. If a mark was recorded before CUDA was in use, host times are used.

    Args:
        clock: Monotonic clock of the host, in seconds.
        events: If False, only the clock of the host is read.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, *, events: bool = True) -> None:
        self._clock, self._events = clock, events

    def mark(self) -> tuple[float, Any]:
        """Read the host's clock, and record an event on the current stream of the current device."""
        torch = (
            sys.modules.get("torch") if self._events else None
        )  # neither imported nor initialized for a mark
        uses_cuda = torch is not None and torch.cuda.is_initialized() and torch.cuda.is_available()
        return self._clock(), import_module(
            "mb_metrics.recorder.tensors"
        ).timing_event() if uses_cuda else None

    def ready(self, mark: tuple[float, Any]) -> bool:
        """Return True if the device has reached the event."""
        return mark[1] is None or bool(mark[1].query())

    def seconds(self, begin: tuple[float, Any], end: tuple[float, Any]) -> float:
        """Return the device's time between two events, waiting for the second."""
        if begin[1] is None or end[1] is None:
            return end[0] - begin[0]
        end[1].synchronize()
        return float(begin[1].elapsed_time(end[1])) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """Time marks around the work that a record describes. Times are read on access, which waits for the device."""

    timer: Timer
    begin: Any
    """Mark of the end of the previous step, or of the start of the job."""
    end: Any
    pauses: tuple[tuple[Any, Any], ...]
    steps: int
    """Steps in this time."""

    @property
    def seconds(self) -> float:
        """Seconds without the pauses; waits for the end of the step."""
        elapsed = self.timer.seconds(self.begin, self.end)
        return elapsed - sum(self.timer.seconds(begin, end) for begin, end in self.pauses)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """Work of one step, and its time."""

    step: int
    """Completed steps, including this one."""
    samples: int | None
    """Sequences over all devices; None: not given."""
    tokens: int | None
    """Tokens over all devices; None: not given."""
    consumed_samples: int | None
    """Sequences since the start of the run; None: not known."""
    span: StepSpan
    """Time since the previous record."""


class StepClock:
    """Clock for consecutive steps, with pauses excluded. It keeps the first and the last step of the job."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self.first: TimedStep | None = None
        self.last: TimedStep | None = None
        self.restart()

    def restart(self) -> None:
        """Start the job, or the next step, now."""
        self._begin = self._timer.mark()
        self._pauses: list[tuple[Any, Any]] = []

    def end_span(self, *, steps: int = 1) -> StepSpan:
        """End the current step, or several of them, and start the next one."""
        end = self._timer.mark()
        span = StepSpan(
            timer=self._timer, begin=self._begin, end=end, pauses=tuple(self._pauses), steps=steps
        )
        self._begin, self._pauses = end, []
        return span

    def end_step(
        self,
        step: int,
        *,
        samples: int | None,
        tokens: int | None,
        consumed_samples: int | None,
        span: StepSpan | None = None,
    ) -> TimedStep:
        """Return the step that ended with `span`; without a span, end the current step now."""
        span = span or self.end_span()
        if consumed_samples is None and samples is not None:
            consumed_samples = self._count_samples(step, samples, steps=span.steps)
        done = TimedStep(
            step=step,
            samples=samples,
            tokens=tokens,
            consumed_samples=consumed_samples,
            span=span,
        )
        self.first, self.last = self.first or done, done
        return done

    def _count_samples(self, step: int, samples: int, *, steps: int) -> int | None:
        """Return the samples consumed up to this step; None if the first record is that of a resumed run."""
        if self.last is None:
            return samples if step <= steps else None
        return None if self.last.consumed_samples is None else self.last.consumed_samples + samples

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time in this block from the current step."""
        begin = self._timer.mark()
        try:
            yield
        finally:
            self._pauses.append((begin, self._timer.mark()))
