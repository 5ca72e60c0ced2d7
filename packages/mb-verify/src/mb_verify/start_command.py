"""Starts of a run as commands in separate processes, and the check of how each one ended. No torch."""

import subprocess
import time
from collections.abc import Callable, Sequence

from mb_verify.errors import VerificationError
from mb_verify.interruption import RunStart


def run_start_command(
    start: RunStart,
    command: Sequence[str],
    *,
    saved_step: Callable[[], int | None],
    log: Callable[[str], None] = print,
) -> None:
    """Run the command of one start to its end. A start with `kill_after` must have killed itself after that checkpoint.

    Args:
        start: what the command starts.
        command: program and arguments; its output is captured.
        saved_step: step of the newest complete checkpoint of the run, read after a kill; None: there is none.
        log: receives one line per start.

    Raises:
        VerificationError: the command failed, or ended before it was to be killed.
    """
    began = time.monotonic()
    ended = subprocess.run(command, text=True, capture_output=True, check=False)
    seconds = time.monotonic() - began
    failed = ended.returncode != 0
    if start.kill_after is not None and failed:
        # a launcher reports the signal of its rank
        killed = ended.returncode < 0 or "SIGKILL" in ended.stderr
        if killed and saved_step() == start.kill_after:
            log(f"{start.name}: killed after step {start.kill_after}, {seconds:.0f} s")
            return
    if failed:
        raise VerificationError(
            f"{start.name}: failed with exit code {ended.returncode}. Start it without a recorder to see more.\n"
            f"{ended.stderr.strip()}"
        )
    if start.kill_after is not None:
        raise VerificationError(
            f"{start.name}: ended before the checkpoint of step {start.kill_after} was complete, so there was nothing "
            "to kill. Make the run longer, or interrupt it earlier."
        )
    log(f"{start.name}: done, {seconds:.0f} s")
