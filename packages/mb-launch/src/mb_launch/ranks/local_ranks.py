"""N ranks of one Python program on this machine, started through torch elastic. Imports torch and psutil.

The launcher forwards SIGTERM, SIGHUP, Ctrl-C and the run's own signal to every rank, so that the ranks can agree on a
last step, save and exit; a second Ctrl-C kills them. The ranks die with the launcher (Linux). A rank that fails records
its error in a file (see `failures`), so that the first cause is shown once. The launcher's store listens on the
loopback interface only.
"""

import logging
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from mb_launch.errors import OpenFilesError
from mb_launch.hardware.numa import BINDING, set_numa_environment
from mb_launch.ranks.failures import (
    ERROR_FOLDER,
    FORWARDED_MARK,
    FORWARDED_SIGNALS,
    Failure,
    common_rerun_code,
    first_failure,
    read_failures,
)
from mb_launch.ranks.forked_ranks import ForkedProgram, can_fork_ranks, run_forked_rank
from mb_launch.ranks.left_ranks import INTERRUPTION, STARTED, LeftRanks
from mb_launch.ranks.local_environment import keep_collectives_local, set_omp_threads
from mb_launch.ranks.loopback import LOOPBACK, new_run_id, register_backend
from mb_schema.signal_handlers import discard_output, install, put_back, terminals


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """Result of a launch: exit code 0 or the rerun machine's, or the exit code of the first failure."""

    exit_code: int
    failure: Failure | None = None
    """First cause, None unless a rank failed."""


def launch_local(
    arguments: Sequence[str],
    *,
    processes: int,
    port: int | None = None,
    exit_signal: int = signal.SIGTERM,
    numa_binding: bool = True,
    fork: ForkedProgram | None = None,
) -> LaunchResult:
    """Run `python ARGUMENTS` in several processes and wait for them.

    Each process finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment,
    as under torchrun.

    Args:
        arguments: Of the Python interpreter: `["train.py", "--steps=5"]` or `["-m", "package"]`.
        processes: Number of ranks. The last one is the logging rank; stderr of the others goes to files, which are
            read if a rank fails.
        port: Of the store, on the loopback interface; None takes a free one.
        exit_signal: Forwarded to the ranks in addition to SIGTERM, SIGINT and SIGHUP. A SIGHUP that is ignored, as
            nohup does, stays ignored.
        numa_binding: Choose CPUs of each rank's NUMA node on machines with several, for `bind_this_process`.
        fork: The same program as a function, for ranks that are forked where that is possible (`can_fork_ranks`);
            None: each rank is an interpreter.

    Returns:
        The exit code, and the first cause of a failure.

    Raises:
        OpenFilesError: This process may open too few files.
        KeyboardInterrupt: Ctrl-C was pressed twice; all ranks have been killed.
    """
    allow_open_files()
    elastic = "torch.distributed.elastic"
    for module in (
        elastic,
        f"{elastic}.agent.server.api",
        "torch.multiprocessing",
    ):  # that module has its own level
        logging.getLogger(module).setLevel(logging.CRITICAL)  # the first cause is returned; no other report
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mb-"))
        stack.enter_context(rank_environment(folder, processes=processes, numa_binding=numa_binding))
        program = fork if fork is not None and can_fork_ranks() else None
        if program is not None:
            program.preload()  # takes seconds, during which signals end this process: there is no rank to receive them
        signals = {*FORWARDED_SIGNALS, exit_signal}
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            signals.discard(signal.SIGHUP)
        stack.enter_context(forwarded_signals(signals, mark=Path(folder) / FORWARDED_MARK))
        config = _launch_config(processes=processes, port=port, folder=folder)
        left = LeftRanks(Path(folder), ranks=processes)
        try:
            with left:
                if program is not None:
                    elastic_launch(config, run_forked_rank)(program)
                else:
                    elastic_launch(config, sys.executable)(*dying_with_launcher(arguments, Path(folder)))
        except ChildFailedError as error:
            return _failed_launch(error, Path(folder), left)
        except SignalException:
            if not left.interrupted:
                raise
        failure = left.failure({})
        return LaunchResult(exit_code=0 if failure is None else failure.exit_code, failure=failure)


DIES_WITH_LAUNCHER = """
import ctypes, os, signal, sys
launcher, mark, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(launcher):
    sys.exit(1)
with open(mark + "-" + os.environ["RANK"], "w") as file:
    file.write(str(os.getpid()))
os.execv(sys.executable, [sys.executable, *command])
"""
"""Program that the kernel kills when its parent dies (PR_SET_PDEATHSIG), which survives the exec."""


def dying_with_launcher(arguments: Sequence[str], folder: Path) -> list[str]:
    """Return arguments of an interpreter that runs another one, which dies with this process. Only Linux has this.

    Args:
        arguments: Of the other interpreter.
        folder: Gets the mark of a rank that has started.
    """
    if sys.platform != "linux":
        return [*arguments]
    return ["-I", "-S", "-c", DIES_WITH_LAUNCHER, str(os.getpid()), str(folder / STARTED), *arguments]


FEWEST_FILES, ENOUGH_FILES = 128, 4096
"""Files that a rank opens at least, with its sockets, and a limit with which many ranks work."""


def allow_open_files() -> None:
    """Raise the limit of open files, which ranks inherit, as far as this user may.

    Raises:
        OpenFilesError: It is too low for sockets between ranks, and cannot be raised.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FEWEST_FILES:
        raise OpenFilesError(
            f"ulimit -n: this process may open {hard} files, and a rank opens more than that with its connections to "
            f"the others. Raise the limit to {ENOUGH_FILES}, or start one process."
        )
    enough = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(ENOUGH_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def _failed_launch(error: ChildFailedError, folder: Path, left: LeftRanks) -> LaunchResult:
    """Return the first cause among the failed ranks, or the exit code by which all of them request a rerun."""
    recorded = read_failures(folder)
    exit_codes = {rank: process.exitcode for rank, process in error.failures.items()}
    code = common_rerun_code([*exit_codes.values()])
    if code is not None and not recorded:
        return LaunchResult(exit_code=code)
    failure = first_failure(error.failures, recorded, logs=folder, left=left.failure(exit_codes))
    # the launcher also ends ranks that have finished and only leave their interpreter
    failed = {rank for rank, code in exit_codes.items() if code not in (-signal.SIGTERM, -signal.SIGKILL)}
    failed |= {each.rank for each in recorded}
    finished = [rank for rank in left.finished_before(failure.time) if rank not in failed]
    if finished:
        names = f"{'ranks' if len(finished) > 1 else 'rank'} {', '.join(map(str, finished))}"
        failure = replace(failure, text=f"{failure.text}\n{names} had finished before, without an error")
    return LaunchResult(exit_code=failure.exit_code, failure=failure)


@contextmanager
def rank_environment(folder: str, *, processes: int, numa_binding: bool) -> Iterator[None]:
    """Set the variables that ranks inherit; remove those that concern the ranks of this launch alone at the end."""
    os.environ[ERROR_FOLDER] = folder
    keep_collectives_local(os.environ)
    set_omp_threads(os.environ, processes=processes)
    set_numa_environment(os.environ, processes=processes, enabled=numa_binding)
    try:
        yield
    finally:
        for name in (ERROR_FOLDER, BINDING):
            os.environ.pop(name, None)


def _launch_config(*, processes: int, port: int | None, folder: str) -> LaunchConfig:
    quiet = dict.fromkeys(range(processes - 1), Std.ERR)
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=new_run_id(),
        rdzv_backend=register_backend(),
        rdzv_endpoint=f"{LOOPBACK}:{port or 0}",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=quiet),
        signals_to_handle=INTERRUPTION.name,  # the others are forwarded, or ignored
        start_method="fork",  # of functions; an interpreter is started as a new process
    )


@contextmanager
def forwarded_signals(signals: Set[int], *, mark: Path | None = None) -> Iterator[None]:
    """Forward signals to all child processes; kill them at a second SIGINT and raise. Previous handlers are restored.

    Args:
        signals: Signals to forward.
        mark: File that is created before the first one is forwarded; None: there is none.

    Raises:
        KeyboardInterrupt: At the second SIGINT.
    """
    received: list[int] = []
    launcher = os.getpid()
    shown = terminals()

    def forward(number: int, frame: FrameType | None) -> None:
        interrupted_again = number == signal.SIGINT and signal.SIGINT in received
        received.append(number)
        if os.getpid() != launcher:  # a rank that was forked, and has not restored its handlers yet
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if mark is not None:
            mark.touch()
        if number == signal.SIGHUP:
            discard_output(shown)
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # it has ended since
                child.send_signal(signal.SIGKILL if interrupted_again else number)
        if interrupted_again:
            raise KeyboardInterrupt

    previous = install(signals, forward)
    try:
        yield
    finally:
        put_back(previous)
