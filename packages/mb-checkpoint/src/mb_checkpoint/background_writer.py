"""The training process's side of its writer process: start it, hand it jobs, notice when it fails, dies or hangs."""

import atexit
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from mb_checkpoint.spawn import ChildProcess, FreshInterpreter, fork
from mb_checkpoint.staging_buffer import StagingBuffer
from mb_checkpoint.worker import JobResult, WorkerSettings, WriteJob, WriterJob, serve
from mb_checkpoint.writing import DataFile

STARTUP_SECONDS = 120.0
"""How long a fresh interpreter may take to import torch on a busy machine."""


class BackgroundWriter:
    """A process that lives as long as the run and does one job at a time; a dead one is replaced at the next job.

    Linux only. Memory: one copy of what this rank writes in a save, on the host, used again by each save.

    Args:
        start_method: "fork": a copy of this process, there at once; it keeps a copy of all memory that this one changes
            afterwards. Anything else: a fresh interpreter, which is ready after some seconds, beside the training.
        nice: CPU priority of the process, 0 to 19.
        io_class: Input/output class, 0 to 3; None leaves the system's.
        hang_seconds: AllButAdapters a written byte for so long, the process counts as hanging and is ended.
        clock: Seconds from any start.
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
        self._seen = (0, 0.0)
        self.start()
        atexit.register(self.close)

    @property
    def pid(self) -> int | None:
        """Process id of the writer; None while there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def staged_bytes(self) -> int:
        """Host memory that is held for copies."""
        return self._buffer.size

    def start(self) -> None:
        """Start the process unless it is there; done by itself before a job."""
        if self._process is not None and self._process.is_alive():
            return
        self._end()
        self._connection, theirs = multiprocessing.Pipe()
        self._buffer.ready = False
        ours, buffer, settings = self._connection, self._buffer.descriptor, self._settings
        if self._start_method == "fork":
            self._process = fork(serve, (theirs, buffer, settings, ours))
        else:
            inherited = (theirs.fileno(), buffer)
            self._process = FreshInterpreter(
                "mb_checkpoint.worker",
                "serve_in_fresh_interpreter",
                (*inherited, settings.parent, settings.nice, settings.io_class),
                inherited,
            )
        theirs.close()

    def write(self, folder: Path, rank: int, files: Sequence[DataFile]) -> None:
        """Copy the tensors and let the process write them. When this returns, they may change.

        Raises:
            OSError: There is not enough memory for the copies, or no process can be started.
            RuntimeError: A job is under way.
        """
        self._free()
        self.submit(WriteJob(folder=folder, rank=rank, files=self._buffer.stage(files)))

    def submit(self, job: WriterJob) -> None:
        """Hand over a job.

        Raises:
            RuntimeError: One is under way.
            OSError: No process can be started.
        """
        self._free()
        self.start()
        self._seen = (
            0,
            self._clock(),
        )  # a number that no progress has: the clock starts when it is first looked at
        if not isinstance(job, WriteJob):
            self._buffer.clear()
        place = self._buffer.append_bytes(pickle.dumps(job))  # a pipe that nobody reads would stop us
        self._connection.send(place)  # type: ignore[union-attr]  # start() made it
        self._busy = True

    def result(self) -> JobResult | None:
        """Return what became of the job, once; None while it is under way.

        A process that died or hangs is an answer too, and is gone afterwards.
        """
        if not self._busy or self._process is None or self._connection is None:
            return None
        alive = (
            self._process.is_alive()
        )  # requested before the pipe: what it sent before its death is still there
        try:
            found: JobResult | None = self._connection.recv() if self._connection.poll() else None
        except (EOFError, OSError):
            found, alive = None, False
        if found is None and not alive:
            found = JobResult(failure=self._describe_exit())
        elif found is None and self._hangs():
            found = JobResult(
                failure=f"the writer process wrote nothing for {self._hang_seconds:g} s and was ended"
            )
        if found is not None:
            self._busy = False
            if found.failure is not None:
                self._end()
        return found

    def stop(self) -> None:
        """End the process, whatever it does; the next job starts another."""
        self._busy = False
        self._end()

    def close(self) -> None:
        """End the process and give the memory back; there will be no next job."""
        atexit.unregister(self.close)
        self.stop()
        self._buffer.close()

    def _free(self) -> None:
        if self._busy:
            raise RuntimeError(
                "checkpoint writer: a save is under way. Wait for it with finalize_async_saves."
            )

    def _hangs(self) -> bool:
        if not self._buffer.ready:  # still importing
            return self._clock() - self._seen[1] > max(self._hang_seconds, STARTUP_SECONDS)
        progress, now = self._buffer.progress + 1, self._clock()
        if progress != self._seen[0]:
            self._seen = (progress, now)
        return now - self._seen[1] > self._hang_seconds

    def _describe_exit(self) -> str:
        if self._process is None:
            return "the writer process is gone"
        self._process.join(5.0)
        code = self._process.exitcode
        how = (
            f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        )
        return f"the writer process died {how}"

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
