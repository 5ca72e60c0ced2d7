"""Conditions for leaving the training loop before the last step."""

from collections.abc import Callable
from dataclasses import dataclass

from mb_loop.duration_limit import DurationLimit, MaxAcrossRanks
from mb_loop.outcome import LoopExit
from mb_loop.settings import TrainSettings

StopRequested = Callable[[int], str | None]
"""Called once after each step with its number. Returns the reason to stop, or None; identical on all ranks."""


def no_stop_requested(step: int) -> str | None:
    """Return None: no stop is requested."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitConditions:
    """Exit conditions in the order of their evaluation: stop request, duration, interval, stragglers."""

    duration: DurationLimit | None = None
    """Limit on the time that the job runs on any rank; None: `duration_stop_requested` decides."""

    duration_stop_requested: StopRequested = no_stop_requested
    """Duration limit of the caller. Called after every step unless a stop was requested; the text names the rank."""

    interval: int | None = None
    """Leave at multiples of this step."""

    stop_requested: StopRequested = no_stop_requested
    """Called after every step, even if another condition holds: sources may be collective."""

    straggler_stop_requested: StopRequested = no_stop_requested
    """Called after every step at which no other condition holds; the text names the ranks that are too slow."""

    @classmethod
    def of(
        cls,
        train: TrainSettings,
        *,
        clock: Callable[[], float],
        start_time: float | None,
        max_across_ranks: MaxAcrossRanks,
        stop_requested: StopRequested,
        straggler_stop_requested: StopRequested,
        duration_stop_requested: StopRequested | None = None,
    ) -> "ExitConditions":
        """Return the conditions that the settings define.

        Args:
            train: interval and duration.
            clock: seconds.
            start_time: start of the job, on `clock`; None: the duration is not limited.
            max_across_ranks: maximum of a value over all ranks; makes the ranks agree on the duration.
            stop_requested: see the field of this name.
            straggler_stop_requested: see the field of this name.
            duration_stop_requested: see the field of this name; None: the ranks compare their clocks.
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
            duration_stop_requested=duration_stop_requested or no_stop_requested,
        )

    def duration_reached(self) -> bool:
        """Return whether the duration has passed on any rank. Collective over the world when a duration is set."""
        return self.duration is not None and self.duration.reached()

    def decide(self, step: int) -> LoopExit | None:
        """Return the first condition that holds after this step, or None. All ranks must call it after every step."""
        text = self.stop_requested(step)
        if text is not None:
            return LoopExit(reason="signal", message=f"stopped after step {step}: {text}")
        text = self.duration_stop_requested(step)
        if text is not None:
            return LoopExit(reason="duration", message=f"stopped after step {step}: {text}")
        if self.duration is not None and self.duration.reached_after(step):
            return LoopExit(
                reason="duration",
                message=f"stopped after step {step}: train.exit_duration_in_mins={self.duration.minutes} have passed",
            )
        if self.interval and step % self.interval == 0:
            return LoopExit(
                reason="interval",
                message=f"stopped after step {step}: train.exit_interval={self.interval} divides it",
            )
        text = self.straggler_stop_requested(step)
        if text is not None:
            return LoopExit(reason="stragglers", message=f"stopped after step {step}: {text}")
        return None
