"""Rank server, from the launcher's side: the process that ranks are forked from, and its forked ranks."""

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

from mb_host.ranks.messages import RankFileDescriptors, RankSpec
from mb_host.ranks.spawned_process import SpawnedProcess, kill_group

_REPLY_SECONDS = 300.0  # enough for a busy machine
_LEAVE_SECONDS = 5.0
_OUTPUT, _ERRORS = 1, 2


class CannotForkError(RuntimeError):
    """There is no rank server, or it must not fork: the rank needs a new interpreter."""


class ServerEndedError(CannotForkError):
    """The rank server has ended; another one can be started."""


class ForkedProcess:
    """Rank forked by a `RankServer`, with the interface of `ProcessHandle`."""

    def __init__(self, pid: int, *, status: int) -> None:
        self.pid = pid
        self._status = status
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the rank is running."""
        if self._exit_code is None and wait([self._status], timeout=0):
            self._read()
        return self._exit_code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the rank and return its exit status.

        Raises:
            subprocess.TimeoutExpired: The rank is still running after `timeout` seconds.
        """
        if self._exit_code is None:
            if not wait([self._status], timeout=timeout):
                raise subprocess.TimeoutExpired(cmd=f"rank {self.pid}", timeout=timeout or 0.0)
            self._read()
        assert self._exit_code is not None
        return self._exit_code

    def send_signal(self, number: int) -> None:
        """Send a signal if the rank is running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the rank and its group, unless it has ended; the server then has killed its group."""
        if self.poll() is None:
            kill_group(self.pid)

    def _read(self) -> None:
        """Read the exit status. If there is none, the server was killed together with the rank."""
        self._exit_code = int(os.read(self._status, 16) or -signal.SIGKILL)
        os.close(self._status)


class RankServer:
    """Interpreter that imports the modules of ranks once and forks the ranks. Linux only; owned by its creator process.

    Args:
        env: Environment during the imports; each rank gets another one when it is forked.
        reply_seconds: Timeout of the imports.
    """

    def __init__(self, *, env: Mapping[str, str], reply_seconds: float = _REPLY_SECONDS) -> None:
        self._control: Connection[RankSpec, int | str]
        self._control, theirs = Pipe()
        self._lock = Lock()
        self._reply_seconds = reply_seconds
        self._owner = os.getpid()
        fd = theirs.fileno()
        program = f"import sys; sys.path[:] = {sys.path!r}; from mb_host.ranks.server_main import serve; serve({fd})"
        self._process = SpawnedProcess([sys.executable, "-c", program], env=env, pass_fds=[fd])
        theirs.close()
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the server is running and connected."""
        return not self._control.closed and self._process.poll() is None

    def fork(self, spec: RankSpec, ends: RankFileDescriptors) -> ForkedProcess:
        """Fork a rank after importing its modules.

        Raises:
            CannotForkError: The rank was not forked; `ServerEndedError` if another server may succeed.
        """
        ours, theirs = os.pipe()
        try:
            with self._lock:
                reply = self._request(
                    spec, [ends.connection, ends.lifeline, ends.dump, _OUTPUT, _ERRORS, theirs]
                )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        if isinstance(reply, str):
            os.close(ours)
            raise CannotForkError(reply)
        return ForkedProcess(reply, status=ours)

    def _request(self, spec: RankSpec, ends: Sequence[int]) -> int | str:
        try:
            self._control.send(spec)
            with socket.socket(fileno=os.dup(self._control.fileno())) as channel:
                socket.send_fds(channel, [b"\0"], ends)
            if self._control.poll(self._reply_seconds):
                return self._control.recv()
        except (OSError, EOFError) as error:
            self.close()
            raise ServerEndedError(f"the rank server has ended ({error!r})") from error
        except BaseException:  # interrupted: a late reply would be read as the next one
            self.close()
            raise
        self.close(grace_seconds=0.0)
        raise CannotForkError(f"the imports take more than {self._reply_seconds:g} s")

    def close(self, *, grace_seconds: float = _LEAVE_SECONDS) -> None:
        """End the server and its remaining ranks; in a fork of the owner process, only close the connection."""
        atexit.unregister(self.close)
        self._control.close()
        if os.getpid() != self._owner:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=grace_seconds)
        self._process.kill()
        self._process.wait()


# One server per process (by ID, because a fork has none) and per set of variables that a pool adds to the environment,
# because imports read them. Servers outlive their pools, so that the next pool does not import again.
_servers: dict[tuple[int, frozenset[tuple[str, str]]], RankServer] = {}


def server_for(added: Mapping[str, str], *, env: Mapping[str, str]) -> RankServer:
    """Return this process's server for pools that add `added` to the environment; `env` is the complete environment."""
    key = os.getpid(), frozenset(added.items())
    if key not in _servers or not _servers[key].is_alive:
        _servers[key] = RankServer(env=env)
    return _servers[key]
