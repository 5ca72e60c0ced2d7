"""Parent process of a rank, for launchers that end the run when one process ends. Standard library only.

torchrun, and srun by default, kill all processes when one of them dies. With in-process restarts the others are to
continue. `keep_run_alive` forks: the child is the rank, and the parent, its keeper, waits. If the rank dies, the keeper
stays until the run ends in the other ranks, so that the launcher does not notice the fault. If the run ends with a
fault, each keeper ends as its rank did.
"""

import atexit
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

from mb_resilience.config import InProcessRestartConfig
from mb_resilience.restarts.arguments import KEEPER, Rendezvous
from mb_schema.signal_handlers import Handler, install, put_back

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a keeper passes to its rank, in addition to those of the caller."""
POLL_SECONDS = 0.5
"""Interval at which the keeper of a dead rank reads whether the run has ended."""
DEATH_SIGNAL = 1
"""Option PR_SET_PDEATHSIG of Linux's prctl: the signal that a process receives when its parent dies."""


def keep_run_alive(
    run: Callable[[], int],
    section: InProcessRestartConfig | None,
    *,
    environment: Mapping[str, str] | None = None,
    exit_signals: Sequence[int] = (),
) -> int:
    """Run a rank in a child process, and keep this process until the run ends in all ranks; return the exit code.

    Without in-process restarts, and for a single process, it only calls `run`. Otherwise, call it before anything
    starts threads or uses a GPU, because the process is forked. The child ends with the result of `run` as its exit
    code, after the exit functions of `atexit`; an exception of `run` is printed, and is exit code 1. The parent returns
    the same code when the child has ended, and should end with it. It returns 0 for a rank that died in a run that
    ended well, and dies by the same signal otherwise. If no launcher
    serves a store (`TORCHELASTIC_USE_AGENT_STORE`), the parent of rank 0 serves it, so that every rank may die. On
    Linux a rank is killed with its keeper.

    Args:
        run: trains with `mb_resilience.restarts.nvrx.run_with_restarts`, and returns the exit code of the process.
        section: settings of restarts; None: they are disabled.
        environment: variables with rank, world size and address of the rendezvous, as torchrun sets them; None:
            `os.environ`.
        exit_signals: further signals to pass to the rank.

    Raises:
        RestartSetupError: in the parent, the environment contains no rank or no rendezvous.
        OSError: in the parent of rank 0, the store cannot be served.
    """
    if section is None or not section.enabled:
        return run()
    meeting = Rendezvous.from_environment(environment)
    if meeting.world_size == 1:
        return run()
    serves = meeting.owner != "launcher"
    os.environ[KEEPER] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    rank = os.fork()
    if rank == 0:
        die_with_parent(parent)
        end_process(run)
    signals = {*FORWARDED, *exit_signals}
    with handled(signals, lambda number, frame: os.kill(rank, number)):
        try:
            server = import_module(STORE).serve_store(meeting) if serves and meeting.rank == 0 else None
        except BaseException:
            os.kill(rank, signal.SIGKILL)
            raise
        # the process is not reaped yet, so that its number remains taken while signals are passed to it
        os.waitid(os.P_PID, rank, os.WEXITED | os.WNOWAIT)
    with handled(signals, signal.SIG_IGN):  # the other ranks receive them, and end the run
        code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
        code = code if code == 0 else outcome_of_run(meeting, code)
        if server is not None:
            time.sleep(4 * POLL_SECONDS)  # for the keepers of other ranks, which read how the run ended
    del server
    return code if code >= 0 else die_by(-code)


STORE = "mb_resilience.restarts.store"
"""Module that imports torch, which the keeper of a healthy rank does not need."""


def end_process(run: Callable[[], int]) -> NoReturn:
    """Run a function and end this process, without returning to the code of a launcher that has called it.

    Torch elastic's workers, for example, wait for their launcher after their function. It expects one per rank.
    """
    code = 1
    try:
        code = run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):  # as an interpreter does
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 (the process ends)
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies. Only Linux has this; no effect elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def handled(signals: set[int], handler: Handler) -> Iterator[None]:
    """Install one handler for several signals within the block; the previous handlers are restored."""
    previous = install(signals, handler)
    try:
        yield
    finally:
        put_back(previous)


def outcome_of_run(meeting: Rendezvous, code: int) -> int:
    """Wait until a run has ended whose rank in this process ended with a code other than 0; return the exit code.

    0 if the run then ends in the other ranks, and the code of this rank if it ended with the run, if all ranks ended
    with a fault, or if the store is gone.
    """
    module = import_module(STORE)
    try:
        store: Any = module.connect(meeting)
        if code > 0 and store.check([module.ENDED]):
            return code  # the exit code of a run that ended, such as that of a requested rerun
        store.add(module.GONE, 1)
        while not store.check([module.ENDED]):
            if store.add(module.GONE, 0) >= meeting.world_size:
                return code
            time.sleep(POLL_SECONDS)
    except RuntimeError:  # torch's DistError: the process that serves the store has ended
        return code
    return 0


def die_by(number: int) -> NoReturn:
    """End this process by a signal, as its rank ended."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)  # a signal that does not end a process
