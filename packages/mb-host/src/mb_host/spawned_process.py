"""A process of this one's own that leads a process group, which ends with it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

_POLL_SECONDS = 0.02


class SpawnedProcess:
    """An interpreter with a process group (of the operating system) of its own.

    What it has started is killed when it is found to have ended, before it is reaped: only until then are its numbers
    certainly its own. Where another has reaped it, what it has started is left alone.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        folder: str | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            env=dict(env),
            pass_fds=pass_fds,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, minus the signal's number after a signal; None while it runs."""
        if self._process.returncode is not None:
            return self._process.returncode
        try:
            if not has_ended(self._process):
                return None
            kill_group(self.pid)
        except ChildProcessError:
            pass  # reaped elsewhere, as by another thread: its number may be another's by now
        return self._process.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, waiting so many seconds for it.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(cmd=f"process {self.pid}", timeout=timeout or 0.0)
            time.sleep(_POLL_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and what it has started, unless it has ended."""
        if self.poll() is None:
            kill_group(self.pid)


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Say whether a process has ended; it is not reaped, but on macOS, where Python before 3.13 cannot look only.

    Raises:
        ChildProcessError: It was reaped elsewhere.
    """
    if sys.platform == "darwin":
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_group(leader: int) -> None:
    """Kill a process group, of which there may be nothing left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
