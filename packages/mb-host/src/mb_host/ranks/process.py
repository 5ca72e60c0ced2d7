"""Handle of a rank's process in the launcher: start, communication, end. The rank runs `mb_host.ranks.main.main`."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Protocol

from mb_host.ranks.messages import RankFileDescriptors, RankReply, RankSpec, RankTask

_DEATH_SECONDS = 5.0
"""Time to wait for the end of a process whose connection is closed, or that received a fatal signal."""


class ProcessHandle(Protocol):
    """Process that leads a process group, spawned by the launcher or forked by the rank server.

    The methods are those of `subprocess.Popen`. When the process ends, the implementation kills the rest of its group.
    """

    @property
    def pid(self) -> int: ...  # noqa: D102

    def poll(self) -> int | None: ...  # noqa: D102

    def wait(self, timeout: float | None = None) -> int: ...  # noqa: D102

    def send_signal(self, number: int, /) -> None: ...  # noqa: D102

    def kill(self) -> None:
        """Kill the process and its group, unless the process has ended."""


class RankProcess:
    """Rank in another process, which leads a process group of the operating system.

    The constructor starts the process. It does not import the launcher's main module, so the launcher may be a
    prompt or an unguarded script.

    Three descriptors connect the two: `connection` carries tasks and replies; faulthandler writes the stacks of the
    rank's threads to a file on a fatal signal; and the launcher holds the write end of a pipe, the lifeline, whose read
    end the rank monitors, so that it ends if the launcher dies.

    Args:
        spec: Start parameters.
        start: Starts the process, which inherits the descriptors.
    """

    def __init__(
        self, spec: RankSpec, *, start: Callable[[RankSpec, RankFileDescriptors], ProcessHandle]
    ) -> None:
        self.rank = spec.rank
        self.connection: Connection[RankTask | None, RankReply]
        self.connection, child_end = Pipe()
        lifeline_end, self._lifeline = os.pipe()
        self._dump = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        descriptors = RankFileDescriptors(
            connection=child_end.fileno(), lifeline=lifeline_end, dump=self._dump.fileno()
        )
        try:
            self._process = start(spec, descriptors)
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
        """Send one task. If the rank is dead, nothing is raised here: `reply` and `exit_code` detect it."""
        with suppress(BrokenPipeError):
            self.connection.send(task)

    def reply(self) -> RankReply | None:
        """Return the next reply, or None if none has arrived. Does not wait for a reply.

        If the rank has closed its connection, waits some seconds for its end, so that `exit_code` is set.
        """
        try:
            return self.connection.recv() if self.connection.poll() else None
        except (EOFError, ConnectionResetError):
            # A dying rank closes its end before it can be reaped.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_DEATH_SECONDS)
            return None

    def abort(self) -> None:
        """Send SIGABRT to the rank, which writes its stacks and dies; `stacks` then returns them."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGABRT)

    def stacks(self) -> str:
        """Return the stacks that the rank wrote on a fatal signal, most recent call first; "" if there are none.

        Waits some seconds for the end of the process. Omits the thread that monitors the lifeline.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_SECONDS)
        text = os.pread(self._dump.fileno(), 1 << 20, 0).decode(errors="replace")
        blocks = text.partition("\nExtension modules:")[0].strip().split("\n\n")
        return "\n\n".join(block for block in blocks if "in _die_with_launcher" not in block)

    def close_connection(self) -> None:
        """Send the last message and close the connection, so that the rank exits once its current task ends."""
        with suppress(OSError):  # the rank is dead
            self.connection.send(None)
        self.connection.close()

    def end(self, *, grace_seconds: float) -> None:
        """Wait up to `grace_seconds` for the rank to exit, kill it and its group, and close all descriptors."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self._process.kill()
        self._process.wait()
        self.connection.close()
        os.close(self._lifeline)
        self._dump.close()
