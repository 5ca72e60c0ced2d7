"""Program of the rank server: import once, then fork ranks until the launcher closes the connection.

A fork copies only the calling thread, so this process has a single thread: anything that starts a thread is left to the
ranks, and if an import starts a thread, no rank is forked.
"""

import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn

from mb_host.installation import install
from mb_host.ranks.main import main
from mb_host.ranks.messages import RankSpec

NUMBER_OF_DESCRIPTORS = 6
"""Descriptors sent with a request: a rank's connection, lifeline and dump, the launcher's stdout and stderr, status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChildRank:
    """Forked rank, with the descriptor for its exit status and a lifeline that closes when this process ends."""

    pid: int
    status: int
    lifeline: int


def serve(control_fd: int) -> None:
    """Reply to each request with the process ID of a rank (an int) or the reason why it was not forked (a str).

    When the launcher closes the connection or dies, all ranks and their child processes are killed.
    """
    control: Connection[int | str, RankSpec] = Connection(control_fd)
    # SIGCHLD must interrupt `wait` below: Python writes to the wakeup descriptor only if a handler is installed.
    wakeup_read, wakeup_write = socket.socketpair()
    wakeup_write.setblocking(False)
    signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: list[_ChildRank] = []
    while True:
        ready = wait([control, wakeup_read])
        if wakeup_read in ready:
            wakeup_read.recv(4096)
            _reap(children)
        if control in ready:
            try:
                spec = control.recv()
                ends = _received(control)
            except (EOFError, OSError):
                _end(children)
            own = [control.fileno(), wakeup_read.fileno(), wakeup_write.fileno()]
            control.send(fork_obstacle(spec) or _fork(spec, ends, children, own=own))
            for end in ends:
                os.close(end)


def _received(control: "Connection[int | str, RankSpec]") -> list[int]:
    """Receive the descriptors that follow a request."""
    with socket.socket(fileno=os.dup(control.fileno())) as channel:
        _message, ends, _flags, _address = socket.recv_fds(channel, 1, NUMBER_OF_DESCRIPTORS)
    for end in ends:
        os.set_inheritable(end, False)
    return ends


def fork_obstacle(spec: RankSpec) -> str | None:
    """Import the modules that the rank needs; return the reason why it cannot be forked, or None."""
    sys.path[:] = spec.path
    try:
        report = install()
        if not report:
            return report.reason
        for name in spec.imports:
            import_module(name)
    except BaseException as error:  # noqa: BLE001 - the rank raises and reports it again
        return f"an import raised {error!r}"
    threads = len([*Path("/proc/self/task").iterdir()])
    return None if threads == 1 else f"{threads} threads are running after the imports"


def _fork(spec: RankSpec, ends: list[int], children: list[_ChildRank], *, own: list[int]) -> int | str:
    lifeline, kept = os.pipe()
    *of_rank, status = ends
    gc.freeze()  # otherwise a collection in a rank would write to, and so copy, every page
    try:
        pid = os.fork()
    except OSError as error:  # out of memory or processes; running ranks continue
        os.close(lifeline)
        os.close(kept)
        return f"fork failed: {error}"
    if pid == 0:
        others = [end for child in children for end in (child.status, child.lifeline)]
        _run_rank(spec, of_rank, lifeline=lifeline, to_close=[*own, kept, status, *others])
    os.setpgid(pid, pid)  # here as well: the launcher may kill the group immediately
    os.close(lifeline)
    children.append(_ChildRank(pid=pid, status=os.dup(status), lifeline=kept))
    return pid


def _run_rank(spec: RankSpec, ends: list[int], *, lifeline: int, to_close: Iterable[int]) -> NoReturn:
    """Set up the environment of a new interpreter in a forked process, and run the rank."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in to_close:
            os.close(end)
        connection, launcher, dump, output, errors = ends
        for end, descriptor in ((output, 1), (errors, 2)):
            os.dup2(end, descriptor)
            os.close(end)
        os.chdir(spec.folder)
        os.environ.clear()
        os.environ.update(spec.environment)
        importlib.invalidate_caches()
        _reseed_numpy()
        main(
            rank=spec.rank,
            world_size=spec.world_size,
            imports=spec.imports,
            connection_fd=connection,
            lifeline_fds=(launcher, lifeline),
            dump_fd=dump,
        )
        code = 0
    except BaseException:  # noqa: BLE001 - a child must not continue as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reseed_numpy() -> None:
    """Seed numpy as its import does; Python seeds its generator after a fork."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _reap(children: list[_ChildRank]) -> None:
    """Report the exit status of ended ranks, and kill their child processes.

    Children are killed before the rank is reaped: until then its process group ID cannot be reused.
    """
    for child in list(children):
        if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        _kill(child)
        _, status = os.waitpid(child.pid, 0)
        with suppress(BrokenPipeError):
            os.write(child.status, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(child.status)
        os.close(child.lifeline)
        children.remove(child)


def _kill(child: _ChildRank) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _end(children: list[_ChildRank]) -> NoReturn:
    for child in children:
        _kill(child)
    for child in children:
        os.waitpid(child.pid, 0)
    os._exit(0)
