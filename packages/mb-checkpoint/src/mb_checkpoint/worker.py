"""The writer process of one rank: takes jobs, writes, answers. It never touches a device and no collective."""

import ctypes
import gc
import os
import pickle
import platform
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock

import torch

from mb_checkpoint.arena import Arena
from mb_checkpoint.compared import Compared
from mb_checkpoint.finish import Finished, FinishJob, finish
from mb_checkpoint.writing import DataFile, put_result, write_files

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_PR_SET_PDEATHSIG = 1
_HANDED_DOWN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a terminal or a scheduler sends to all processes, and that the training process answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """The data files of one rank; their tensors lie in the arena."""

    folder: Path
    rank: int
    files: tuple[DataFile, ...]


Job = WriteJob | FinishJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a job."""

    failure: str | None = None
    """Why it could not be done."""
    finished: Finished | None = None
    """Of a `FinishJob`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a writer process runs."""

    parent: int
    """Process id of the training process: the writer does not outlive it."""
    nice: int
    """0 to 19."""
    io_class: int | None
    """0 to 3; 3: only when the disk is idle."""


def serve_fresh(connection: int, arena: int, parent: int, nice: int, io_class: int | None) -> None:
    """Serve in an interpreter that was started for it."""
    serve(Connection(connection), arena, WorkerSettings(parent=parent, nice=nice, io_class=io_class), None)


def serve(connection: Connection, arena: int, settings: WorkerSettings, inherited: Connection | None) -> None:
    """Take jobs from the connection until it is closed. Runs in a process of its own, and never returns into it.

    `inherited` is the parent's end of the connection, where a fork left a copy of it here.
    """
    _settle(settings)
    if inherited is not None:
        inherited.close()  # else this end would never hear that the other one is gone
    memory = Arena(arena)
    memory.served = True
    count = _counted(memory)
    compared = Compared(progress=count)
    while True:
        try:
            job: Job = pickle.loads(memory.fetch(connection.recv()))
        except (EOFError, OSError):
            os._exit(0)
        answer = _done(job, memory, compared, count)
        del job
        try:
            connection.send(answer)
        except OSError:
            os._exit(0)


def _done(job: Job, memory: Arena, compared: Compared, count: Callable[[int], None]) -> Answer:
    try:
        if isinstance(job, FinishJob):
            return Answer(finished=finish(job, compared, progress=count))
        put_result(
            job.folder,
            job.rank,
            write_files(job.folder, memory.resolve(job.files), progress=count),
        )
        return Answer()
    except Exception as error:  # noqa: BLE001  # not swallowed: the training process tells all ranks
        return Answer(failure=f"{type(error).__name__}: {error}")


def _counted(memory: Arena) -> Callable[[int], None]:
    turn = Lock()

    def count(size: int) -> None:  # called in several threads
        with turn:
            memory.progress += size

    return count


def _settle(settings: WorkerSettings) -> None:
    """Make this process one that dies with its parent, steps aside, and leaves the parent's objects alone."""
    gc.disable()  # objects of the parent that live on a device must not be collected here
    gc.freeze()
    torch.set_num_threads(1)
    for number in _HANDED_DOWN:
        signal.signal(number, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != settings.parent:
        os._exit(0)
    os.nice(max(0, settings.nice - os.nice(0)))
    call = _IOPRIO_SET.get(platform.machine())
    if settings.io_class is not None and call is not None:
        libc.syscall(call, 1, 0, settings.io_class << 13)  # best effort, as every priority is
