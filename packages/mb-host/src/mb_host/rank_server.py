"""The process that ranks are forked from, as the launcher sees it, and the ranks that it has forked."""

import atexit
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from threading import Lock

from mb_host.rank_messages import RankFileDescriptors, RankSpec
from mb_host.spawned_process import SpawnedProcess, kill_group

_REPLY_SECONDS = 300.0  # on a machine that is busy, too
_LEAVE_SECONDS = 5.0
_OUTPUT, _ERRORS = 1, 2


class CannotForkError(RuntimeError):
    """There is no process to fork from, or it must not fork: a rank needs an interpreter of its own."""


class ServerEndedError(CannotForkError):
    """The process to fork from has ended; another one can be started."""


class ForkedProcess:
    """A rank that a `RankServer` has forked; has what `RankProcess` needs of `subprocess.Popen`."""

    def __init__(self, pid: int, *, status: int) -> None:
        self.pid = pid
        self._status = status
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, minus the signal's number after a signal; None while it runs."""
        if self._exit_code is None and wait([self._status], timeout=0):
            self._read()
        return self._exit_code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, waiting so many seconds for it.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        if self._exit_code is None:
            if not wait([self._status], timeout=timeout):
                raise subprocess.TimeoutExpired(cmd=f"rank {self.pid}", timeout=timeout or 0.0)
            self._read()
        assert self._exit_code is not None
        return self._exit_code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and what it has started, unless it has ended; the server has killed what it had started then."""
        if self.poll() is None:
            kill_group(self.pid)

    def _read(self) -> None:
        """Take the status; where none comes, its server was killed, and it was with it."""
        self._exit_code = int(os.read(self._status, 16) or -signal.SIGKILL)
        os.close(self._status)


class RankServer:
    """An interpreter that imports what ranks need once, and forks them. Linux only; of the process that made it.

    Args:
        env: The whole environment, as far as it is read by imports; each rank gets its own when it is forked.
        reply_seconds: How long the imports may take.
    """

    def __init__(self, *, env: Mapping[str, str], reply_seconds: float = _REPLY_SECONDS) -> None:
        self._control: Connection[RankSpec, int | str]
        self._control, theirs = Pipe()
        self._lock = Lock()
        self._reply_seconds = reply_seconds
        self._owner = os.getpid()
        fd = theirs.fileno()
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from mb_host.rank_server_main import serve; serve({fd})"
        )
        self._process = SpawnedProcess([sys.executable, "-c", program], env=env, pass_fds=[fd])
        theirs.close()
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return not self._control.closed and self._process.poll() is None

    def fork(self, orders: RankSpec, ends: RankFileDescriptors) -> ForkedProcess:
        """Return a new rank, once what it needs has been imported.

        Raises:
            CannotForkError: Why there is none; `ServerEndedError` where another server may do it.
        """
        ours, theirs = os.pipe()
        try:
            with self._lock:
                answer = self._request(
                    orders, [ends.connection, ends.lifeline, ends.dump, _OUTPUT, _ERRORS, theirs]
                )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        if isinstance(answer, str):
            os.close(ours)
            raise CannotForkError(answer)
        return ForkedProcess(answer, status=ours)

    def _request(self, orders: RankSpec, ends: Sequence[int]) -> int | str:
        try:
            self._control.send(orders)
            with socket.socket(fileno=os.dup(self._control.fileno())) as channel:
                socket.send_fds(channel, [b"\0"], ends)
            if self._control.poll(self._reply_seconds):
                return self._control.recv()
        except (OSError, EOFError) as error:
            self.close()
            raise ServerEndedError(f"the process that ranks are forked from has ended ({error!r})") from error
        except BaseException:  # interrupted: an answer that comes later would be taken for the next one
            self.close()
            raise
        self.close(grace_seconds=0.0)
        raise CannotForkError(f"the imports take more than {self._reply_seconds:g} s")

    def close(self, *, grace_seconds: float = _LEAVE_SECONDS) -> None:
        """End it, and whatever is left of its ranks; a fork of the process that made it only lets it go."""
        atexit.unregister(self.close)
        self._control.close()
        if os.getpid() != self._owner:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=grace_seconds)
        self._process.kill()
        self._process.wait()


# One for all pools of a process (by its id: a fork of it has none), so that imports are paid for once; by what a pool
# adds to the environment, because imports read it. None is ended with its last pool: the next pool would import again.
_servers: dict[tuple[int, frozenset[tuple[str, str]]], RankServer] = {}


def server_for(added: Mapping[str, str], *, env: Mapping[str, str]) -> RankServer:
    """Return this process's server for pools that add `added` to the environment; `env` is all of it."""
    key = os.getpid(), frozenset(added.items())
    if key not in _servers or not _servers[key].is_alive:
        _servers[key] = RankServer(env=env)
    return _servers[key]
