"""One rank as the launcher sees it: start it, talk to it, end it."""

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
    """What is asked of a process, mostly as of a `subprocess.Popen`; it leads a process group of its own."""

    @property
    def pid(self) -> int: ...  # noqa: D102

    def poll(self) -> int | None: ...  # noqa: D102

    def wait(self, timeout: float | None = None) -> int: ...  # noqa: D102

    def send_signal(self, number: int, /) -> None: ...  # noqa: D102

    def kill(self) -> None:
        """Kill it and what it has started, unless it has ended: what it has started has ended with it then."""


class RankProcess:
    """A running rank, with a process group (of the operating system) of its own.

    It does not import the launcher's main module, so the launcher may be a prompt or an unguarded script. `start`
    makes it a process, which takes over the descriptors that it is given.
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
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit status, minus the signal's number after a signal; None while it runs."""
        return self._process.poll()

    def send(self, work: RankTask) -> None:
        """Hand over one run; a rank that has died is found when its reply is awaited."""
        with suppress(BrokenPipeError):
            self.connection.send(work)

    def reply(self) -> RankReply | None:
        """Return the reply that is there, or None; after the rank's death `exit_code` says so."""
        try:
            return self.connection.recv() if self.connection.poll() else None
        except (
            EOFError,
            ConnectionResetError,
        ):  # the rank's end is closed as it dies, before it can be reaped
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_DEATH_SECONDS)
            return None

    def abort(self) -> None:
        """Stop the rank where it stands; `stacks` then tells where that was."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGABRT)

    def stacks(self) -> str:
        """Return the stacks of the rank's threads, the latest call first, if a fatal signal has hit it, or "".

        Without the thread that watches over the lifeline, which always stands there.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_SECONDS)
        text = os.pread(self._dump.fileno(), 1 << 20, 0).decode(errors="replace")
        blocks = text.partition("\nExtension modules:")[0].strip().split("\n\n")
        return "\n\n".join(block for block in blocks if "in _die_with_launcher" not in block)

    def close_connection(self) -> None:
        """Tell the rank that no more work comes."""
        self.connection.close()

    def end(self, *, grace_seconds: float) -> None:
        """Wait so long for the rank to leave, then kill it, and whatever it has started, and reap it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self._process.kill()
        self._process.wait()
        self.connection.close()
        os.close(self._lifeline)
        self._dump.close()
