"""Conditions for leaving the training loop before the last step."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from mb_loop.exits.outcome import ExitReason, LoopExit
from mb_loop.settings import TrainSettings

MaxAcrossRanks = Callable[[float], float]
"""Returns the largest value over all ranks. Collective."""

MAX_STEPS = 1000
"""Maximum number of steps between two comparisons of the clocks."""


class DurationLimit:
    """Limit on the time that a job runs, with the same result on all ranks.

    Every rank queries the limit after every step, but the ranks compare their clocks rarely. From the step time between
    two comparisons they compute the number of steps that half of the remaining time will last, and do not compare
    clocks before. A run of any length therefore needs a few dozen comparisons, most of them near the end. If steps
    become more than twice as slow, the limit is detected late. With a communication channel other than collectives,
    pass `duration_stop_requested` to `train` instead.

    Args:
        minutes: limit in minutes.
        clock: time in seconds; of `time.time` one reading alone is taken, and `time.monotonic` counts from there, so
            that a wall clock that is set during the run ends no run.
        start_time: start of the job, on `clock`.
        max_across_ranks: maximum of a value over all ranks.
    """

    def __init__(
        self,
        *,
        minutes: float,
        clock: Callable[[], float],
        start_time: float,
        max_across_ranks: MaxAcrossRanks,
    ) -> None:
        self.minutes = minutes
        self._clock, self._start_time = clock, start_time
        if clock is time.time:
            self._clock = time.monotonic
            self._start_time += time.monotonic() - clock()
        self._max_across_ranks = max_across_ranks
        self._last: tuple[int, float] | None = None
        self._next = 0
        self._reached = False

    def reached(self) -> bool:
        """Return whether the limit is reached on any rank. Collective until it is reached."""
        self._reached = self._reached or self._elapsed() >= self.minutes
        return self._reached

    def reached_after(self, step: int) -> bool:
        """Return whether the limit is reached after `step`. Collective only when the ranks compare their clocks."""
        if self._reached or step < self._next:
            return self._reached
        elapsed = self._elapsed()
        self._next = step + self._steps_until_next_check(step, elapsed)
        self._last = step, elapsed
        self._reached = elapsed >= self.minutes
        return self._reached

    def _elapsed(self) -> float:
        return self._max_across_ranks((self._clock() - self._start_time) / 60)

    def _steps_until_next_check(self, step: int, elapsed: float) -> int:
        """Return the number of steps until the next comparison.

        Computed from numbers that all ranks agree on, so that all ranks compare after the same step.
        """
        if self._last is None or elapsed <= self._last[1]:
            return 1
        minutes_per_step = (elapsed - self._last[1]) / (step - self._last[0])
        return max(1, min(MAX_STEPS, int((self.minutes - elapsed) / (2 * minutes_per_step))))


StopRequested = Callable[[int], str | None]
"""Called at most once after each step, with its number. Returns the reason to stop, or None; identical on all ranks, so
that the ranks agree which further conditions are evaluated. It may therefore be collective."""

StopEvaluation = Callable[[], bool]
"""Called before each batch but the first, on all ranks. Returns whether to stop; must return the same on all ranks."""


def never_stop() -> bool:
    """Return False: evaluate all batches."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitConditions:
    """Exit conditions. The first that holds decides: stop request, duration, early stop, interval, stragglers."""

    duration: DurationLimit | None = None
    """Limit on the time that the job runs on any rank. Ranks compare their clocks by collectives. None: no limit other
    than `duration_stop_requested`."""

    duration_stop_requested: StopRequested | None = None
    """Duration limit that the caller implements, such as over a store. Called after every step unless a stop was
    requested; the text names the rank."""

    early_stop_requested: StopRequested | None = None
    """Called at a step at which no condition before holds; leads to the exit reason "early_stop"."""

    interval: int | None = None
    """Leave after steps that are multiples of it; None: never."""

    stop_requested: StopRequested | None = None
    """Called after every step. A reason leads to the exit reason "signal", whatever the source is."""

    straggler_stop_requested: StopRequested | None = None
    """Called after every step at which no other condition holds; the text names the slow ranks."""

    @classmethod
    def of(
        cls,
        train: TrainSettings,
        *,
        clock: Callable[[], float],
        start_time: float | None,
        max_across_ranks: MaxAcrossRanks,
        stop_requested: StopRequested | None,
        straggler_stop_requested: StopRequested | None,
        duration_stop_requested: StopRequested | None = None,
        early_stop_requested: StopRequested | None = None,
    ) -> "ExitConditions":
        """Return the conditions that the settings define, with one duration limit at most.

        Args:
            train: `exit_interval` and `exit_duration_in_mins`.
            clock: time in seconds.
            start_time: start of the job, on `clock`; None: clocks are not compared.
            max_across_ranks: maximum of a value over all ranks; makes the ranks agree on the duration.
            stop_requested: see the field of this name.
            straggler_stop_requested: see the field of this name.
            duration_stop_requested: see the field of this name; replaces `duration`. None: ranks compare their clocks.
            early_stop_requested: see the field of this name.
        """
        minutes = train.exit_duration_in_mins
        duration = (
            None
            if duration_stop_requested is not None or minutes is None or start_time is None
            else DurationLimit(
                minutes=minutes, clock=clock, start_time=start_time, max_across_ranks=max_across_ranks
            )
        )
        return cls(
            duration=duration,
            interval=train.exit_interval,
            stop_requested=stop_requested,
            straggler_stop_requested=straggler_stop_requested,
            duration_stop_requested=duration_stop_requested,
            early_stop_requested=early_stop_requested,
        )

    def duration_reached(self) -> bool:
        """Return whether the limit `duration` is reached on any rank, for use between two steps.

        Compares the clocks at every call: collective over the world while a limit is set and not reached.
        `duration_stop_requested` is not called.
        """
        return self.duration is not None and self.duration.reached()

    def early_stop(self, step: int) -> LoopExit | None:
        """Return the exit if a callback ends training after this step, or None. Also for use before the first step."""
        return _requested("early_stop", self.early_stop_requested, step)

    def decide(self, step: int) -> LoopExit | None:
        """Return the exit for the first condition that holds after this step, or None.

        All ranks must call it after every step.
        """
        return (
            _requested("signal", self.stop_requested, step)
            or _requested("duration", self.duration_stop_requested, step)
            or self._after_duration(step)
            or self.early_stop(step)
            or self._at_interval(step)
            or _requested("stragglers", self.straggler_stop_requested, step)
        )

    def _after_duration(self, step: int) -> LoopExit | None:
        if self.duration is None or not self.duration.reached_after(step):
            return None
        passed = f"train.exit_duration_in_mins={self.duration.minutes} have passed"
        return LoopExit(reason="duration", message=f"stopped after step {step}: {passed}")

    def _at_interval(self, step: int) -> LoopExit | None:
        if not self.interval or step % self.interval:
            return None
        divides = f"train.exit_interval={self.interval} divides it"
        return LoopExit(reason="interval", message=f"stopped after step {step}: {divides}")


def _requested(reason: ExitReason, requested: StopRequested | None, step: int) -> LoopExit | None:
    text = None if requested is None else requested(step)
    return None if text is None else LoopExit(reason=reason, message=f"stopped after step {step}: {text}")
