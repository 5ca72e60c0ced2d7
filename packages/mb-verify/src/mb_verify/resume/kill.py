"""Callback that kills its process soon after a checkpoint. No torch."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class KillAfterCheckpoint:
    """Kills this process (SIGKILL) in a step after a checkpoint, as soon as the checkpoint is complete.

    Until then each step waits, twice as long as the previous one, so that a background writer keeps up with a small
    model even while its process is starting. The steps do not stop, because a background save is completed between
    two steps.

    Args:
        step: step of the checkpoint.
        tracker: file that holds the step of the newest complete checkpoint.
        kill: whether to kill this process; False on ranks that only wait.
        mark: file that is created just before; None: none. A launcher may not report the signal, because another rank
            fails first when its partner is gone.
        pause: seconds that the first of these steps waits.
        longest: upper limit of that wait in seconds.
        clock: monotonic clock, in seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        step: int,
        *,
        tracker: Path,
        kill: bool,
        mark: Path | None = None,
        pause: float = 0.5,
        longest: float = 8.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step = step
        self._tracker = tracker
        self._kill = kill
        self._mark = mark
        self._pause = pause
        self._longest = longest
        self._clock = clock
        self._sleep = sleep

    def on_train_step_start(self, context: Any) -> None:
        """Wait or kill, from the second step after the checkpoint."""
        if context.state.train_state.step <= self._step:
            return
        deadline = self._clock() + self._pause
        self._pause = min(2 * self._pause, self._longest)
        while (tracked_step(self._tracker) or 0) < self._step:
            remaining = deadline - self._clock()
            if remaining <= 0:
                return
            self._sleep(min(remaining, 0.02))
        if self._kill:
            if self._mark is not None:
                self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def tracked_step(tracker: Path) -> int | None:
    """Return the step that a tracker file holds; None: there is no file, or its writer has not completed it."""
    text = tracker.read_text(encoding="utf-8").strip() if tracker.is_file() else ""
    return int(text) if text.isdecimal() else None
