"""Stop requests before the last step: a signal or the duration limit, agreed by all ranks. Imports torch.

The ranks agree through the store of the process group, so that no step waits for a collective.
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
    """Stop requests that the loop polls after each step and during evaluations.

    Every rank has one instance; the results are identical on all ranks.

    Args:
        watcher: receives signals on this rank.
        train: section with the duration limit.
        start_time: start of the job in seconds since the epoch; None: no duration limit applies.
        world: rank and world size of this process.
    """

    def __init__(
        self, watcher: Watcher, train: TrainingConfig, *, start_time: float | None, world: World
    ) -> None:
        wishes = [watcher]
        self.wish = agreed(watcher, world, about="signals")
        """Stop request of signals: the reason for which all ranks leave after this step, or None."""
        self.time: Callable[[int], str | None] | None = None
        """Stop request of `train.exit_duration_in_mins`; None without a limit."""
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
        """Whether an evaluation was aborted."""

    def leave_evaluation(self) -> bool:
        """Return whether to abort an evaluation, for either reason; called before each of its batches."""
        if not self.gave_up:
            self._batches += 1
            self.gave_up = self._in_evaluations(self._batches) is not None
        return self.gave_up


def agreed(watcher: Watcher, world: World, *, about: str) -> AgreedStop:
    """Return a callable that returns, step by step, whether any rank has this stop request."""
    several = world.world_size > 1
    return AgreedStop(
        watcher,
        store=torch.distributed.distributed_c10d._get_default_store() if several else None,
        rank=world.rank,
        world_size=world.world_size,
        attempt=f"{world.attempt}/{about}",
    )


def never() -> bool:
    """Return False: never abort an evaluation."""
    return False


def ignore_late(number: int) -> None:
    """Ignore a signal permanently unless a watcher receives it; for a process that ends with its run."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.SIG_IGN)


def signal_watcher(train: TrainingConfig, *, announce: Callable[[str], object] | None) -> SignalWatcher:
    """Return the watcher of Ctrl-C and `train.exit_signal` on this rank.

    Launchers forward Ctrl-C to processes that already received it from the terminal, so one key press arrives twice.
    """
    same_press = 1.0 if is_launched(os.environ) else 0.2
    return SignalWatcher((signal.SIGINT, train.exit_signal), debounce_seconds=same_press, announce=announce)
