"""N processes of the same command on this machine, through torch elastic: one voice, one cause when it fails.

Without a GPU the processes are forked from the launcher, which has imported Megatron Core once for all of them.

The launcher passes SIGTERM, Ctrl-C and the run's own signal on to every process, which then agree on a last step, save
and leave; a second Ctrl-C kills them. A process that fails leaves its error in a file of its own, so that the cause is
shown once.
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from mb_trainer.failures import ERROR_FOLDER, FAILED, Failure, read_failures
from mb_trainer.forked_ranks import can_fork_ranks, preload, run_forked_rank
from mb_trainer.loopback import LOOPBACK, keep_collectives_local, new_run_id, register_backend
from mb_trainer.numa import set_numa_environment
from mb_trainer.processes import divide_cores

FORWARDED = (signal.SIGTERM, signal.SIGINT)
RERUN_CODES = {16, 17}
"""Exit codes by which the rerun machine tells whoever starts jobs what to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How the processes ended: exit code 0 or the rerun machine's, or the failure that came first."""

    exit_code: int
    failure: Failure | None = None


def launch(
    arguments: Sequence[str],
    *,
    processes: int,
    port: int | None = None,
    exit_signal: int = signal.SIGTERM,
    numa_binding: bool = True,
) -> Launched:
    """Run `mb ARGUMENTS` in several processes and wait for them.

    Args:
        arguments: words after `mb`.
        processes: how many; the last one speaks, the others' stderr goes to a file that is read when one dies.
        port: of the store, on the loopback interface; None takes a free one.
        exit_signal: passed on to the processes, as SIGTERM and SIGINT are.
        numa_binding: bind each process to the CPUs of its GPU's NUMA node, where there are several.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed twice; the processes are gone.
    """
    for module in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(module).setLevel(logging.CRITICAL)  # every failure is reported below, once
    with tempfile.TemporaryDirectory(prefix="mb-") as folder, forwarded_signals({*FORWARDED, exit_signal}):
        set_worker_environment(Path(folder), processes=processes)
        set_numa_environment(os.environ, processes=processes, enabled=numa_binding)
        quiet = dict.fromkeys(range(processes - 1), Std.ERR)
        forked = can_fork_ranks()
        if forked:
            preload()
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=new_run_id(),
            rdzv_backend=register_backend(),
            rdzv_endpoint=f"{LOOPBACK}:{port or 0}",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=quiet),
            signals_to_handle="SIGHUP,SIGQUIT",
            start_method="fork",  # of functions; a program is started as it is
        )
        try:
            if forked:
                elastic_launch(config, run_forked_rank)(*arguments)
            else:
                elastic_launch(config, sys.executable)("-m", "mb_trainer", *arguments)
        except ChildFailedError as error:
            told = read_failures(Path(folder))
            code = agreed_code([process.exitcode for process in error.failures.values()])
            if code is not None and not told:
                return Launched(exit_code=code)
            failure = first_failure(error.failures, told, logs=Path(folder))
            return Launched(exit_code=failure.exit_code, failure=failure)
    return Launched(exit_code=0)


def set_worker_environment(folder: Path, *, processes: int) -> None:
    """Set where failures go, which interface collectives use, and how many threads each process has."""
    os.environ[ERROR_FOLDER] = str(folder)
    keep_collectives_local(os.environ)
    divide_cores(os.environ, processes=processes)


@contextmanager
def forwarded_signals(signals: Set[int]) -> Iterator[None]:
    """Pass signals on to the processes; kill them at a second SIGINT and raise. The handlers found are put back."""
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        interrupted_again = number == signal.SIGINT and signal.SIGINT in received
        received.append(number)
        for child in psutil.Process().children():
            child.send_signal(signal.SIGKILL if interrupted_again else number)
        if interrupted_again:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, forward) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def agreed_code(exit_codes: Sequence[int]) -> int | None:
    """Return the code of the rerun machine, 16 or 17, that processes ended with; None where it was something else.

    All of them leave with it, but the launcher ends those that are a moment later.
    """
    others = {code for code in exit_codes if -code not in FORWARDED}
    return others.pop() if len(others) == 1 and others <= RERUN_CODES else None


def first_failure(ended: Mapping[int, ProcessFailure], told: Sequence[Failure], *, logs: Path) -> Failure:
    """Return the cause: a process that was killed, else the earliest error told, else what elastic knows.

    The others fail because of it: their partner is gone.
    """
    for rank, process in ended.items():
        if process.exitcode < 0 and -process.exitcode not in FORWARDED:
            name = signal.Signals(-process.exitcode).name
            text = f"rank {rank} was killed by {name}{last_words(logs, rank)}"
            return Failure(rank=rank, time=0.0, text=text, exit_code=FAILED)
    if told:
        first = min(told, key=lambda failure: failure.time)
        return replace(first, text=f"rank {first.rank}: {first.text}")
    rank, process = next(iter(ended.items()))
    text = f"rank {rank} ended with exit code {process.exitcode}{last_words(logs, rank)}"
    return Failure(rank=rank, time=0.0, text=text, exit_code=FAILED)


def last_words(logs: Path, rank: int, *, lines: int = 20) -> str:
    """Return the end of what a process wrote to stderr, where it was kept."""
    for file in logs.glob(f"*/attempt_*/{rank}/stderr.log"):
        words = file.read_text(errors="replace").splitlines()[-lines:]
        if words:
            return "; its last words:\n" + "\n".join(words)
    return ""
