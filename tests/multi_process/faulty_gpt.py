"""Recipe: gpt_tiny with faults at chosen steps, for tests and the table of restarts: `faulty_gpt.py:recipe`.

The variable PLANTED_FAULTS is a JSON list of faults (rank, kind, step). Each happens once in the run folder of
PLANTED_FAULT_FOLDER, where a file records its time.
"""

import json
import os
import signal
import time
from pathlib import Path

from mb_config.overrides.registration import Recipe
from mb_loop import Callback
from mb_trainer import UserCode
from mb_trainer.recipes import gpt_tiny

FAULTS, FOLDER = "PLANTED_FAULTS", "PLANTED_FAULT_FOLDER"


class Faults(Callback):
    """Let this rank fail before a step."""

    def on_train_step_start(self, context):
        for number, (rank, kind, step) in enumerate(json.loads(os.environ.get(FAULTS, "[]"))):
            happened = Path(os.environ[FOLDER]) / f"fault{number}"
            reached = (int(os.environ["RANK"]), context.state.train_state.step) == (rank, step)
            if reached and not happened.exists():
                happened.write_text(f"{time.time()}")
                fail(kind)


def fail(kind: str) -> None:
    """Raise, leave, die, or stop without a progress."""
    if kind == "raise":
        raise RuntimeError("a planted fault")
    if kind.startswith("exit "):
        os._exit(int(kind.split()[1]))
    if kind.startswith("SystemExit "):
        raise SystemExit(int(kind.split()[1]))
    if kind == "KeyboardInterrupt":
        raise KeyboardInterrupt
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}[kind])


recipe = Recipe(build=gpt_tiny, code=UserCode(callbacks=[Faults()]))
