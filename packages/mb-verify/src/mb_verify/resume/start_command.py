"""Starts of a run as commands in separate processes, and the check of how each one ended. No torch."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mb_verify.errors import VerificationError
from mb_verify.record.environment import KILLED, PREFIX
from mb_verify.resume.interruption import RunStart
from mb_verify.resume.kill import tracked_step


def run_start_command(
    start: RunStart,
    command: Sequence[str],
    *,
    tracker: Path | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """Run the command of one start to its end. A start with `kill_after` must have killed itself after that checkpoint.

    The environment of the command requests the recording (`callbacks_from_environment`), so that the command needs no
    option for it.

    Args:
        start: what the command starts.
        command: program and arguments; its output is captured.
        tracker: file that holds the step of the run's newest complete checkpoint; needed for a start that is killed.
        log: receives one line per start.

    Raises:
        VerificationError: the command failed, or ended before it was to be killed; or a start is to be killed without a
            tracker.
    """
    if start.kill_after is not None and tracker is None:
        raise VerificationError(
            f"{start.name}: is to be killed after the checkpoint of step {start.kill_after}, and there is no tracker "
            "to wait for. Pass tracker=, or interrupt without kill=True."
        )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environment = {**inherited, **start.environment(tracker=tracker)}
    began = time.monotonic()
    ended = subprocess.run(command, text=True, capture_output=True, check=False, env=environment)
    seconds = time.monotonic() - began
    failed = ended.returncode != 0
    if start.kill_after is not None and failed:
        # a launcher reports the signal of its rank, or the failure of a rank whose partner is gone
        marked = (start.record / KILLED).is_file()
        killed = ended.returncode < 0 or "SIGKILL" in ended.stderr or marked
        if killed and tracker is not None and tracked_step(tracker) == start.kill_after:
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
