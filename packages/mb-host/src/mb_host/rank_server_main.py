"""The program of the process that ranks are forked from: import once, then fork until the launcher hangs up.

A fork takes over the calling thread alone, so this process never has another one: what would start one is left to the
ranks, and where an import has started one nothing is forked any more.
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
from mb_host.rank_main import main
from mb_host.rank_messages import RankSpec

NUMBER_OF_DESCRIPTORS = 6
"""What comes with orders: a rank's connection, lifeline and dump, the launcher's output and errors, and the status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChildRank:
    """A rank, and the ends that are this process's: the rank's status goes to one, the other dies with this process."""

    pid: int
    status: int
    lifeline: int


def serve(control_fd: int) -> None:
    """Answer each order with the process id of a rank (an int) or with why there can be none (a str).

    When the launcher hangs up, or has died, all ranks and what they have started are killed.
    """
    control: Connection[int | str, RankSpec] = Connection(control_fd)
    heard, bell = socket.socketpair()
    bell.setblocking(False)
    signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # rings the bell
    children: list[_ChildRank] = []
    while True:
        ready = wait([control, heard])
        if heard in ready:
            heard.recv(4096)
            _reap(children)
        if control in ready:
            try:
                orders = control.recv()
                ends = _received(control)
            except (EOFError, OSError):
                _end(children)
            own = [control.fileno(), heard.fileno(), bell.fileno()]
            control.send(fork_obstacle(orders) or _fork(orders, ends, children, own=own))
            for end in ends:
                os.close(end)


def _received(control: "Connection[int | str, RankSpec]") -> list[int]:
    """Return the descriptors that follow an order."""
    with socket.socket(fileno=os.dup(control.fileno())) as channel:
        _, ends, _, _ = socket.recv_fds(channel, 1, NUMBER_OF_DESCRIPTORS)
    for end in ends:
        os.set_inheritable(end, False)
    return ends


def fork_obstacle(orders: RankSpec) -> str | None:
    """Import what the rank needs; return why it cannot be forked here, or None."""
    sys.path[:] = orders.path
    try:
        report = install()
        if not report:
            return report.reason
        for name in orders.imports:
            import_module(name)
    except BaseException as error:  # noqa: BLE001 - the rank meets it again, and tells it
        return f"an import raised {error!r}"
    threads = len([*Path("/proc/self/task").iterdir()])
    return None if threads == 1 else f"{threads} threads run after the imports"


def _fork(orders: RankSpec, ends: list[int], children: list[_ChildRank], *, own: list[int]) -> int | str:
    lifeline, kept = os.pipe()
    *of_rank, status = ends
    gc.freeze()  # else a collection in a rank would touch, and so copy, every page
    try:
        pid = os.fork()
    except OSError as error:  # no memory or no process left: the ranks that run go on
        os.close(lifeline)
        os.close(kept)
        return f"the system does not fork: {error}"
    if pid == 0:
        others = [end for child in children for end in (child.status, child.lifeline)]
        _run_rank(orders, of_rank, lifeline=lifeline, to_close=[*own, kept, status, *others])
    os.setpgid(pid, pid)  # here too: the launcher may kill the group at once
    os.close(lifeline)
    children.append(_ChildRank(pid=pid, status=os.dup(status), lifeline=kept))
    return pid


def _run_rank(orders: RankSpec, ends: list[int], *, lifeline: int, to_close: Iterable[int]) -> NoReturn:
    """Become what a fresh interpreter would be, and serve the launcher."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in to_close:
            os.close(end)
        connection, launcher, dump, output, errors = ends
        for end, place in ((output, 1), (errors, 2)):
            os.dup2(end, place)
            os.close(end)
        os.chdir(orders.folder)
        os.environ.clear()
        os.environ.update(orders.environment)
        importlib.invalidate_caches()
        _reseed_numpy()
        main(
            rank=orders.rank,
            world_size=orders.world_size,
            imports=orders.imports,
            connection_fd=connection,
            lifeline_fds=(launcher, lifeline),
            dump_fd=dump,
        )
        code = 0
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reseed_numpy() -> None:
    """Seed numpy as its import would; Python's own generator is seeded by the fork."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _reap(children: list[_ChildRank]) -> None:
    """Say how ranks have ended; what they have started ends with them, while their ids are still their own."""
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
