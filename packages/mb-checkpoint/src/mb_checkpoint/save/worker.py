"""Writer process of one rank: receives jobs, writes, and returns results. It uses no device and no collective."""

import ctypes
import gc
import os
import pickle
import platform
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock

import torch

from mb_checkpoint.errors import cause_of
from mb_checkpoint.formats.checksums import Checksum
from mb_checkpoint.save.finalize import FinalizeJob, finalize_save
from mb_checkpoint.save.retention import PruneJob, PruneResult
from mb_checkpoint.save.spawn import depend_on_parent
from mb_checkpoint.save.staging_buffer import StagingBuffer
from mb_checkpoint.save.writing import DataFile, WrittenFiles, hash_files, write_files, write_result

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """Data files of one rank, with tensors in the staging buffer."""

    folder: Path
    rank: int
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HashJob:
    """Data files of one rank that another writer wrote, to be hashed and forced to the disk."""

    folder: Path
    rank: int
    files: tuple[DataFile, ...]
    """Further files of the rank, of which the other writer has none: with serialized objects, to be written."""
    checksum: Checksum = "xxh3_128"
    """Algorithm of the checksums."""


WriterJob = WriteJob | HashJob | FinalizeJob | PruneJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Result of a job."""

    failure: str | None = None
    """Reason of a failure."""
    total_bytes: int | None = None
    """Result of a `FinalizeJob`: size of the checkpoint."""
    pruned: PruneResult | None = None
    """Result of a `PruneJob`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of a writer process."""

    parent: int
    """Process id of the training process; the writer dies with it."""
    nice: int
    """0 to 19."""
    io_class: int | None
    """0 to 3; 3 uses the disk only when it is idle."""


def serve_in_fresh_interpreter(
    connection: int, buffer: int, parent: int, nice: int, io_class: int | None
) -> None:
    """Run `serve` in an interpreter that was started for it."""
    serve(Connection(connection), buffer, WorkerSettings(parent=parent, nice=nice, io_class=io_class), None)


def serve(
    connection: Connection, buffer: int, settings: WorkerSettings, inherited: Connection | None
) -> None:
    """Run jobs from the connection until it is closed. The main loop of the writer process; does not return.

    `inherited` is the parent's end of the connection, of which a fork leaves a copy in this process.
    """
    _configure_process(settings)
    if inherited is not None:
        inherited.close()  # else the connection would never be closed, and this process would outlive its parent
    memory = StagingBuffer(buffer)
    memory.ready = True
    count = _counted(memory)
    while True:
        try:
            job: WriterJob = pickle.loads(memory.read_bytes_at(connection.recv()))
        except (EOFError, OSError):
            os._exit(0)
        result = _run_job(job, memory, count)
        del job
        try:
            connection.send(result)
        except OSError:
            os._exit(0)


def _run_job(job: WriterJob, memory: StagingBuffer, count: Callable[[int], None]) -> JobResult:
    try:
        if isinstance(job, FinalizeJob):
            return JobResult(total_bytes=finalize_save(job, progress=count))
        if isinstance(job, PruneJob):
            return JobResult(pruned=job.run(progress=count))
        if isinstance(job, HashJob):
            hashed = hash_files(job.folder, job.rank, algorithm=job.checksum, progress=count)
            written = WrittenFiles(files=hashed + write_files(job.folder, job.files, progress=count).files)
        else:
            written = write_files(job.folder, memory.resolve(job.files), progress=count)
        write_result(job.folder, job.rank, written)
        return JobResult()
    except Exception as error:  # noqa: BLE001  # not swallowed: the training process reports it to all ranks
        return JobResult(failure=cause_of(error))


def _counted(memory: StagingBuffer) -> Callable[[int], None]:
    lock = Lock()

    def count(size: int) -> None:  # called in several threads
        with lock:
            memory.progress += size

    return count


def _configure_process(settings: WorkerSettings) -> None:
    """Make this process die with its parent, lower its priority, and leave the parent's objects untouched."""
    gc.disable()  # objects of the parent on a device must not be collected here
    gc.freeze()
    torch.set_num_threads(1)
    depend_on_parent(settings.parent)
    os.nice(max(0, settings.nice - os.nice(0)))
    call = _IOPRIO_SET.get(platform.machine())
    if settings.io_class is not None and call is not None:
        ctypes.CDLL(None).syscall(call, 1, 0, settings.io_class << 13)  # best effort, as every priority is
