"""When to leave the loop before the last step."""

from collections.abc import Callable
from dataclasses import dataclass

from mb_loop.duration import Duration, Longest
from mb_loop.outcome import Exit
from mb_loop.settings import TrainSettings

ExitWish = Callable[[int], str | None]
"""Called once after each step with its number; a text means: leave now. It must answer alike on all ranks."""


def no_wish(step: int) -> str | None:
    """Never wish to leave."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """Exit conditions, in their order: a wish, the duration, the interval, slow ranks."""

    duration: Duration | None = None
    """Leave once the job has run for so long on any rank; None: `time` says when."""

    time: ExitWish = no_wish
    """Asked after every step, as `wish` is: a text says whose time is up."""

    interval: int | None = None
    """Leave at multiples of this step."""

    wish: ExitWish = no_wish
    """Asked after every step, also when another condition holds."""

    slow: ExitWish = no_wish
    """Asked after every step that no other condition ends: a text says which ranks are too slow to go on."""

    @classmethod
    def of(
        cls,
        train: TrainSettings,
        *,
        clock: Callable[[], float],
        start_time: float | None,
        longest: Longest,
        wish: ExitWish,
        slow: ExitWish,
        time: ExitWish | None = None,
    ) -> "Exits":
        """Return the conditions that the settings ask for.

        Args:
            train: interval and duration.
            clock: seconds.
            start_time: when the job began, on `clock`; None: the duration counts for nothing.
            longest: agreement of the ranks on the duration.
            wish: see above.
            slow: see above.
            time: see above; None: the ranks compare their clocks.
        """
        minutes = train.exit_duration_in_mins
        duration = (
            None
            if time is not None or minutes is None or start_time is None
            else Duration(minutes=minutes, clock=clock, start_time=start_time, longest=longest)
        )
        return cls(
            duration=duration, interval=train.exit_interval, wish=wish, slow=slow, time=time or no_wish
        )

    def time_is_up(self) -> bool:
        """Say whether the duration has passed on any rank. Collective over the world where there is one."""
        return self.duration is not None and self.duration.passed()

    def decide(self, step: int) -> Exit | None:
        """Return the first condition that holds after this step. All ranks must call it for every step."""
        text = self.wish(step)
        if text is not None:
            return Exit(reason="signal", message=f"stopped after step {step}: {text}")
        text = self.time(step)
        if text is not None:
            return Exit(reason="duration", message=f"stopped after step {step}: {text}")
        if self.duration is not None and self.duration.passed_after(step):
            return Exit(
                reason="duration",
                message=f"stopped after step {step}: train.exit_duration_in_mins={self.duration.minutes} have passed",
            )
        if self.interval and step % self.interval == 0:
            return Exit(
                reason="interval",
                message=f"stopped after step {step}: train.exit_interval={self.interval} divides it",
            )
        text = self.slow(step)
        if text is not None:
            return Exit(reason="stragglers", message=f"stopped after step {step}: {text}")
        return None
