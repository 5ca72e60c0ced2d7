"""Child process that leads a process group, which is killed when it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

_POLL_SECONDS = 0.02


class SpawnedProcess:
    """Child process with a separate process group of the operating system.

    When the process has ended, its group is killed before it is reaped: afterwards its IDs may be reused. If another
    thread has reaped it, its group is not killed.
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
        """Process ID."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process is running."""
        if self._process.returncode is not None:
            return self._process.returncode
        try:
            if not has_ended(self._process):
                return None
            kill_group(self.pid)
        except ChildProcessError:
            pass  # reaped elsewhere, such as by another thread: its ID may be reused
        return self._process.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process and return its exit status.

        Raises:
            subprocess.TimeoutExpired: The process is still running after `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(cmd=f"process {self.pid}", timeout=timeout or 0.0)
            time.sleep(_POLL_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal if the process is running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and its group, unless it has ended."""
        if self.poll() is None:
            kill_group(self.pid)


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, without reaping it (except on macOS, where Python before 3.13 cannot).

    Raises:
        ChildProcessError: The process was reaped elsewhere.
    """
    if sys.platform == "darwin":
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_group(leader: int) -> None:
    """Kill a process group, which may be empty."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
