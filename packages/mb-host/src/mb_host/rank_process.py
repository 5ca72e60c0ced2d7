"""Rank process, from the launcher's side: start, communication, end."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Protocol

from mb_host.rank_messages import RankFileDescriptors, RankReply, RankSpec, RankTask

_DEATH_SECONDS = 5.0


class ProcessHandle(Protocol):
    """Process that leads a process group; interface similar to `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...  # noqa: D102

    def poll(self) -> int | None: ...  # noqa: D102

    def wait(self, timeout: float | None = None) -> int: ...  # noqa: D102

    def send_signal(self, number: int, /) -> None: ...  # noqa: D102

    def kill(self) -> None:
        """Kill the process and its group, unless it has ended; its group is killed when it ends."""


class RankProcess:
    """Running rank, with a separate process group of the operating system.

    It does not import the launcher's main module, so the launcher may be a prompt or an unguarded script. `start`
    starts the process, which inherits the descriptors.
    """

    def __init__(
        self, orders: RankSpec, *, start: Callable[[RankSpec, RankFileDescriptors], ProcessHandle]
    ) -> None:
        self.rank = orders.rank
        self.connection: Connection[RankTask, RankReply]
        self.connection, child_end = Pipe()
        lifeline_end, self._lifeline = os.pipe()
        self._dump = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        ends = RankFileDescriptors(
            connection=child_end.fileno(), lifeline=lifeline_end, dump=self._dump.fileno()
        )
        try:
            self._process = start(orders, ends)
        except BaseException:
            self.connection.close()
            os.close(self._lifeline)
            self._dump.close()
            raise
        finally:
            child_end.close()
            os.close(lifeline_end)

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit status, negative for a signal; None while the process is running."""
        return self._process.poll()

    def send(self, task: RankTask) -> None:
        """Send one run. The death of a rank is detected when its reply is awaited."""
        with suppress(BrokenPipeError):
            self.connection.send(task)

    def reply(self) -> RankReply | None:
        """Return the available reply, or None; after the death of the rank `exit_code` is set."""
        try:
            return self.connection.recv() if self.connection.poll() else None
        except (
            EOFError,
            ConnectionResetError,
        ):  # a dying rank closes its end before it can be reaped
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_DEATH_SECONDS)
            return None

    def abort(self) -> None:
        """Abort the rank; `stacks` then returns its current stacks."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGABRT)

    def stacks(self) -> str:
        """Return the stacks of the rank's threads after a fatal signal, most recent call first, or "".

        Omits the thread that monitors the lifeline.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_SECONDS)
        text = os.pread(self._dump.fileno(), 1 << 20, 0).decode(errors="replace")
        blocks = text.partition("\nExtension modules:")[0].strip().split("\n\n")
        return "\n\n".join(block for block in blocks if "in _die_with_launcher" not in block)

    def close_connection(self) -> None:
        """Close the connection, which ends the rank's loop."""
        self.connection.close()

    def end(self, *, grace_seconds: float) -> None:
        """Wait `grace_seconds` for the rank to exit, then kill it and its group, and reap it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self._process.kill()
        self._process.wait()
        self.connection.close()
        os.close(self._lifeline)
        self._dump.close()
