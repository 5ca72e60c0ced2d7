"""When to leave the loop before the last step."""

from collections.abc import Callable
from dataclasses import dataclass

from mb_loop.duration_limit import DurationLimit, MaxAcrossRanks
from mb_loop.outcome import LoopExit
from mb_loop.settings import TrainSettings

StopRequested = Callable[[int], str | None]
"""Called once after each step with its number; a text means: leave now. It must answer alike on all ranks."""


def no_stop_requested(step: int) -> str | None:
    """Never wish to leave."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitConditions:
    """Exit conditions, in their order: a stop_requested, the duration, the interval, slow ranks."""

    duration: DurationLimit | None = None
    """Leave once the job has run for so long on any rank; None: `time` says when."""

    duration_stop_requested: StopRequested = no_stop_requested
    """Asked after every step, as `wish` is: a text says whose time is up."""

    interval: int | None = None
    """Leave at multiples of this step."""

    stop_requested: StopRequested = no_stop_requested
    """Asked after every step, also when another condition holds."""

    straggler_stop_requested: StopRequested = no_stop_requested
    """Asked after every step that no other condition ends: a text says which ranks are too slow to go on."""

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
        """Return the conditions that the settings ask for.

        Args:
            train: interval and duration.
            clock: seconds.
            start_time: when the job began, on `clock`; None: the duration counts for nothing.
            max_across_ranks: agreement of the ranks on the duration.
            stop_requested: see above.
            straggler_stop_requested: see above.
            duration_stop_requested: see above; None: the ranks compare their clocks.
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
        """Say whether the duration has passed on any rank. Collective over the world where there is one."""
        return self.duration is not None and self.duration.reached()

    def decide(self, step: int) -> LoopExit | None:
        """Return the first condition that holds after this step. All ranks must call it for every step."""
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
