"""Client of the writer process: starts it, submits jobs, and detects failures, exits and hangs."""

import atexit
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.save.spawn import ChildProcess, FreshInterpreter, fork
from mb_checkpoint.save.staging_buffer import StagingBuffer
from mb_checkpoint.save.worker import JobResult, WorkerSettings, WriteJob, WriterJob, serve
from mb_checkpoint.save.writing import DataFile
from mb_schema.exit_codes import signal_name

STARTUP_SECONDS = 120.0
"""Time that a fresh interpreter may take to import torch on a busy machine."""


class BackgroundWriter:
    """Long-lived writer process that runs one job at a time; a dead process is replaced at the next job.

    Linux only. Host memory: one copy of the data that this rank writes in a save, reused by each save.

    Args:
        start_method: "fork": a copy of this process, available at once; it keeps a copy of all memory that this process
            changes afterwards. Any other value: a fresh interpreter, which is ready after some seconds and starts in
            parallel to the training.
        nice: CPU priority of the process, 0 to 19.
        io_class: Input/output scheduling class, 0 to 3; None keeps the default of the system.
        hang_seconds: A process that writes no byte for this time is considered hung and is killed.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        *,
        start_method: str = "spawn",
        nice: int = 10,
        io_class: int | None = 3,
        hang_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start_method = start_method
        self._settings = WorkerSettings(parent=os.getpid(), nice=nice, io_class=io_class)
        self._hang_seconds = hang_seconds
        self._clock = clock
        self._buffer = StagingBuffer()
        self._process: ChildProcess | None = None
        self._connection: Connection | None = None
        self._busy = False
        self._seen_progress, self._seen_at = 0, 0.0
        self.start()
        atexit.register(self.close)

    @property
    def pid(self) -> int | None:
        """Process id of the writer; None while no process is running."""
        return self._process.pid if self._process is not None else None

    @property
    def staged_bytes(self) -> int:
        """Size in bytes of the host memory allocated for copies."""
        return self._buffer.size

    def reserve(self, size: int) -> None:
        """Allocate memory for the copies ahead of the first save, in the background; see `StagingBuffer.reserve`."""
        self._buffer.reserve(size)

    def start(self) -> None:
        """Start the process unless it is running. Called automatically before a job."""
        if self._process is not None and self._process.is_alive():
            return
        self._kill()
        self._connection, theirs = multiprocessing.Pipe()
        self._buffer.ready = False
        ours, buffer, settings = self._connection, self._buffer.descriptor, self._settings
        if self._start_method == "fork":
            self._process = fork(serve, (theirs, buffer, settings, ours))
        else:
            inherited = (theirs.fileno(), buffer)
            self._process = FreshInterpreter(
                "mb_checkpoint.save.worker",
                "serve_in_fresh_interpreter",
                (*inherited, settings.parent, settings.nice, settings.io_class),
                inherited,
            )
        # With another copy of its end open here, `recv` would not notice the death of the process.
        theirs.close()

    def write(self, folder: Path, rank: int, files: Sequence[DataFile]) -> None:
        """Copy the tensors to host memory and submit a job that writes them. The tensors may change after this call.

        Raises:
            OSError: There is not enough memory for the copies, or no process can be started.
            RuntimeError: A job is in progress.
        """
        self._require_idle()
        self.submit(WriteJob(folder=folder, rank=rank, files=self._buffer.stage(files)))

    def submit(self, job: WriterJob) -> None:
        """Submit a job.

        Raises:
            RuntimeError: A job is in progress.
            OSError: No process can be started.
        """
        self._require_idle()
        self.start()
        # No progress equals 0 (it is counted from 1), so the clock starts at the first check.
        self._seen_progress, self._seen_at = 0, self._clock()
        if not isinstance(job, WriteJob):
            self._buffer.clear()
        # The job goes through the buffer and only its position through the pipe, because a large message would block
        # this process until the writer reads it.
        position = self._buffer.append_bytes(pickle.dumps(job))
        self._connection.send(position)  # type: ignore[union-attr]  # start() made it
        self._busy = True

    def result(self) -> JobResult | None:
        """Return the result of the job, once; None while the job is in progress.

        The death or hang of the process is returned as a failure; the process is gone afterwards.
        """
        if not self._busy or self._process is None or self._connection is None:
            return None
        # Read before the pipe: a result sent just before the death is still in the pipe.
        alive = self._process.is_alive()
        try:
            result: JobResult | None = self._connection.recv() if self._connection.poll() else None
        except (EOFError, OSError):
            result, alive = None, False
        if result is None and not alive:
            result = JobResult(failure=self._describe_exit())
        elif result is None and self._is_hanging():
            result = JobResult(
                failure=f"the writer process wrote nothing for {self._hang_seconds:g} s and was killed"
            )
        if result is not None:
            self._busy = False
            if result.failure is not None:
                self._kill()
        return result

    def stop(self) -> None:
        """Kill the process, even during a job; the next job starts another one."""
        self._busy = False
        self._kill()

    def close(self) -> None:
        """Kill the process and release the memory. The writer cannot be used afterwards."""
        atexit.unregister(self.close)
        self.stop()
        self._buffer.close()

    def _require_idle(self) -> None:
        if self._busy:
            raise RuntimeError(
                "checkpoint writer: a save is in progress. Call finalize_async_saves(blocking=True) first."
            )

    def _is_hanging(self) -> bool:
        if not self._buffer.ready:  # still importing torch
            return self._clock() - self._seen_at > max(self._hang_seconds, STARTUP_SECONDS)
        progress, now = self._buffer.progress + 1, self._clock()
        if progress != self._seen_progress:
            self._seen_progress, self._seen_at = progress, now
        return now - self._seen_at > self._hang_seconds

    def _describe_exit(self) -> str:
        if self._process is None:
            return "the writer process is gone"
        self._process.join(5.0)
        code = self._process.exitcode
        how = f"by {signal_name(-code)}" if code is not None and code < 0 else f"with exit code {code}"
        return f"the writer process died {how}"

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def new_writer(config: CheckpointConfig) -> BackgroundWriter | None:
    """Return the writer that a section requests; None without `async_save`."""
    if not config.async_save:
        return None
    return BackgroundWriter(
        start_method=config.async_write_results_mp_mode,
        nice=config.async_ckpt_cpu_priority,
        io_class=config.async_ckpt_io_priority,
        hang_seconds=config.async_hang_seconds,
    )
