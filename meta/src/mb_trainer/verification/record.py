"""What is written down while a run goes on: a file of JSON lines for each rank. No torch before training starts."""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_checkpoint.layout import STEP_TRACKER
from mb_loop import Callback, CallbackContext

Values = Mapping[str, str]
"""`"category: name"` -> value or hash."""


class Recorder(Callback):
    """Writes what this rank holds between steps, and what each step made. Changes nothing of the numbers.

    Between steps: counters, random streams, optimizer state, parameters. Of a step: hashes of the sequences that the
    data iterator delivered, losses, gradient norm, learning rate. Reads every tensor back to the host, every step.

    Args:
        folder: receives `rank-<rank>.<start>.jsonl`.
        rank: of this process.
        start: number of the start of the same run, so that a resumed run spoils nothing.
    """

    def __init__(self, folder: Path, *, rank: int, start: int) -> None:
        self._path = folder / f"rank-{rank}.{start}.jsonl"
        self._rank = rank
        self._watch: Any = None

    def on_train_start(self, context: CallbackContext) -> None:
        """Begin the file; say where the run stands and whether this rank reads for others, too."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        digests = import_module("mb_trainer.verification.digests")  # torch and megatron are there by now
        self._watch = digests.Watch(context)
        step = context.state.train_state.step
        values = {"rank": str(self._rank), "reads": str(self._watch.reads_first)}
        self._write("start", step, values, conditions=digests.conditions())

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Write what is held after the step before."""
        self._write("held", context.state.train_state.step, self._watch.held(context))

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Write what the step read and made."""
        self._write("made", context.state.train_state.step, self._watch.made(context))

    def on_train_end(self, context: CallbackContext) -> None:
        """Write what is held at the end, unless the run has failed."""
        if context.outcome is not None:
            whole = context.outcome.reason == "finished"  # in the middle of a run only one of both comes here
            self._write("held", context.state.train_state.step, self._watch.held(context, whole=whole))

    def _write(self, kind: str, step: int, values: Values, **more: Values) -> None:
        line = json.dumps({"kind": kind, "step": step, "values": values, **more})
        with self._path.open("a") as file:
            file.write(line + "\n")


class Killer(Callback):
    """Kills this process (SIGKILL) within the steps after a checkpoint, as soon as that is whole.

    Until then each step waits, twice as long as the one before, so that a background writer keeps up with a small model
    even where its process is only starting. The steps go on: a background save is finished between two of them.

    Args:
        step: of the checkpoint.
        checkpoints: its folder.
        kill: ends the process; False on ranks that only wait.
        pause: seconds that the first of these steps waits.
        longest: seconds that no step exceeds.
        clock: seconds, monotonic.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        step: int,
        *,
        checkpoints: Path,
        kill: bool,
        pause: float = 0.5,
        longest: float = 8.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step = step
        self._tracker = checkpoints / STEP_TRACKER
        self._kill = kill
        self._pause = pause
        self._longest = longest
        self._clock = clock
        self._sleep = sleep

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Wait or kill, from the second step after the checkpoint on."""
        if context.state.train_state.step <= self._step:
            return
        deadline = self._clock() + self._pause
        self._pause = min(2 * self._pause, self._longest)
        while not self._whole():
            left = deadline - self._clock()
            if left <= 0:
                return
            self._sleep(min(left, 0.02))
        if self._kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def _whole(self) -> bool:
        return self._tracker.is_file() and int(self._tracker.read_text()) >= self._step
