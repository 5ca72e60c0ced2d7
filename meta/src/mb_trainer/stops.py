"""Why a run stops before its last step: a signal or its time, heard by one rank and agreed by all. Imports torch.

Agreed through the store of the process group, so that no step waits for a collective.
"""

import os
import signal
import threading
from collections.abc import Callable

import torch

from mb_config import TrainingConfig
from mb_launch import World, is_launched
from mb_resilience import AgreedStop, CombinedWatcher, DeadlineWatcher, SignalWatcher, Watcher


class Stops:
    """What the loop asks after each step, and within evaluations; alike on all ranks, each of which makes one.

    Args:
        watcher: hears signals on this rank.
        train: its duration.
        start_time: when the job began, in seconds since the epoch; None: its duration counts for nothing.
        world: this rank's place.
    """

    def __init__(
        self, watcher: Watcher, train: TrainingConfig, *, start_time: float | None, world: World
    ) -> None:
        wishes = [watcher]
        self.wish = agreed(watcher, world, about="signals")
        """Signals: why all ranks leave after this step, or None."""
        self.time: Callable[[int], str | None] | None = None
        """The same for `train.exit_duration_in_mins`; None where there is no limit."""
        minutes = train.exit_duration_in_mins
        if minutes is not None and start_time is not None:
            deadline = DeadlineWatcher(
                minutes, start_time=start_time, what=f"train.exit_duration_in_mins={minutes}"
            )
            wishes.append(deadline)
            self.time = agreed(deadline, world, about="time")
        self._in_evaluations = agreed(CombinedWatcher(*wishes), world, about="evaluations")
        self._batches = 0
        self.gave_up = False
        """Whether an evaluation was given up."""

    def leave_evaluation(self) -> bool:
        """Say whether to give up an evaluation, for either reason; asked before each of its batches."""
        if not self.gave_up:
            self._batches += 1
            self.gave_up = self._in_evaluations(self._batches) is not None
        return self.gave_up


def agreed(watcher: Watcher, world: World, *, about: str) -> AgreedStop:
    """Return what asks, step by step, whether any rank has this wish."""
    several = world.world_size > 1
    return AgreedStop(
        watcher,
        store=torch.distributed.distributed_c10d._get_default_store() if several else None,
        rank=world.rank,
        world_size=world.world_size,
        attempt=f"{world.attempt}/{about}",
    )


def never() -> bool:
    """Give up no evaluation."""
    return False


def ignore_late(number: int) -> None:
    """Ignore a signal where no watcher hears it, for good: for a process that ends with its run."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.SIG_IGN)


def signal_watcher(train: TrainingConfig, *, announce: Callable[[str], object] | None) -> SignalWatcher:
    """Return what hears Ctrl-C and `train.exit_signal` on this rank.

    Launchers pass Ctrl-C on to processes that got it from the terminal already: one press is heard twice there.
    """
    same_press = 1.0 if is_launched(os.environ) else 0.2
    return SignalWatcher((signal.SIGINT, train.exit_signal), debounce_seconds=same_press, announce=announce)
