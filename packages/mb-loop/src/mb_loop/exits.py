"""When to leave the loop before the last step."""

from collections.abc import Callable
from dataclasses import dataclass

from mb_loop.outcome import Exit

ExitWish = Callable[[int], str | None]
"""Called once after each step with its number; a text means: leave now. It must answer alike on all ranks."""

AnyRank = Callable[[bool], bool]
"""Says whether a flag is set on any rank."""


def no_wish(step: int) -> str | None:
    """Never wish to leave."""
    return None


def this_rank(flag: bool) -> bool:
    """Answer for one process."""
    return flag


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """Exit conditions, in their order: a wish, the duration, the interval."""

    clock: Callable[[], float]
    """Seconds."""

    start_time: float
    """When the job began, on `clock`."""

    duration_minutes: float | None = None
    """Leave once the job has run for so long on any rank."""

    interval: int | None = None
    """Leave at multiples of this step."""

    wish: ExitWish = no_wish
    """Asked after every step, also when another condition holds."""

    any_rank: AnyRank = this_rank
    """Agreement on the duration; asked only when a duration is set."""

    def decide(self, step: int) -> Exit | None:
        """Return the first condition that holds after this step. All ranks must call it for every step."""
        text = self.wish(step)
        if text is not None:
            return Exit(reason="signal", message=f"stopped after step {step}: {text}")
        if self.duration_minutes is not None:
            minutes = (self.clock() - self.start_time) / 60
            if self.any_rank(minutes >= self.duration_minutes):
                return Exit(
                    reason="duration",
                    message=f"stopped after step {step}: {minutes:.1f} minutes have passed "
                    f"(train.exit_duration_in_mins={self.duration_minutes})",
                )
        if self.interval and step % self.interval == 0:
            return Exit(
                reason="interval",
                message=f"stopped after step {step}: train.exit_interval={self.interval} divides it",
            )
        return None
