"""A command with all processes that it starts, which can be ended as a whole. The standard library only."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")


class StartedCommand:
    """A running command. Its output goes to a file.

    Args:
        command: program and arguments.
        environment: variables of the command.
        log: receives its output.
        mark: variable whose value no other command has; its processes are found by it.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, mark: str
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._mark = f"{mark}={environment[mark]}"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while the command is running."""
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal to the command itself."""
        self._process.send_signal(number)

    def kill(self, *, grace: float = 0.0) -> list[str]:
        """Kill the command and all its processes, and wait for them. Return names of those other than the command.

        Processes that end within `grace` seconds after the command are not killed.
        """
        deadline = time.monotonic() + grace
        while self.exit_code is not None and time.monotonic() < deadline and processes_with(self._mark):
            time.sleep(0.02)
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        killed: dict[int, str] = {}
        deadline = time.monotonic() + 10
        while (remaining := processes_with(self._mark)) and time.monotonic() < deadline:
            for process in remaining:
                killed.setdefault(process, name_of(process))
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
        self._process.wait()
        killed.pop(self._process.pid, None)
        return [killed[process] for process in sorted(killed)]


def processes_with(variable: str) -> list[int]:
    """Return the processes whose environment contains `NAME=VALUE`; none where the system has no /proc.

    Processes of other users, and those that have ended, are not found.
    """
    processes = []
    for file in PROCESSES.glob("[0-9]*/environ"):
        with suppress(OSError):
            if variable.encode() in file.read_bytes().split(b"\0"):
                processes.append(int(file.parent.name))
    return processes


def name_of(process: int) -> str:
    """Return the command line of a process, shortened; "?" if it has ended."""
    try:
        words = (PROCESSES / str(process) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    return " ".join(words)[:80].strip() or "?"
