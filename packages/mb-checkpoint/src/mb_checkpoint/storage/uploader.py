"""Copying the checkpoints of a run to a storage, in a thread and a process of their own."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mb_checkpoint.errors import StorageError, cause_of
from mb_checkpoint.storage.checkpoints import upload_checkpoint
from mb_checkpoint.storage.owner import StorageOwner
from mb_checkpoint.storage.storage import open_storage

_PR_SET_PDEATHSIG = 1
_PROGRAM = "import sys; sys.path[:] = {path!r}; from mb_checkpoint.storage.uploader import run_job; run_job()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Storage of a run, and the number of checkpoints to keep in it."""

    address: str
    """URL or folder."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the fsspec file system; see `storage.open_storage`."""
    keep: int = -1
    """Number of newest checkpoints to keep; -1 keeps all."""
    retain_interval: int | None = None
    """Multiples of this step are never deleted."""
    owner: StorageOwner | None = None
    """Result of `claim_storage`; None: the storage must be empty, or that of the run."""


class StorageUploader:
    """Copies checkpoints to a storage in the background, one at a time, in the order of their steps.

    The copy is made in a separate process without torch, so that the training loop shares neither the interpreter nor
    its memory with it. While a copy is in progress, only the last checkpoint that is submitted is kept in line. After a
    failure the training continues, and the next checkpoint is copied as usual.

    Args:
        destination: The storage.
        log: Receives a line for each copy, from a thread.
    """

    def __init__(self, destination: Destination, *, log: Callable[[str], object]) -> None:
        self._destination = destination
        self._log = log
        self._condition = threading.Condition()
        self._next: Path | None = None
        self._busy = False
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None

    def submit(self, checkpoint: Path) -> None:
        """Copy a committed checkpoint. Returns at once; replaces a submitted one whose copy has not begun."""
        with self._condition:
            if self._next is not None:
                line = (
                    f"not copied to {self._destination.address}: {self._next}, as {checkpoint.name} follows"
                )
                self._log(line)
            self._next = checkpoint
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="storage-uploader", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    @property
    def busy(self) -> bool:
        """Whether a copy is in progress or in line."""
        with self._condition:
            return self._busy or self._next is not None

    def wait(self) -> None:
        """Wait until all copies have ended."""
        with self._condition:
            self._condition.wait_for(lambda: not self._busy and self._next is None)

    def stop(self) -> None:
        """Kill a copy in progress; a later run continues it."""
        with self._condition:
            self._next = None
            if self._process is not None:
                self._process.kill()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._next is not None)
                checkpoint, self._next, self._busy = self._next, None, True
            try:
                self._log(self._copy(checkpoint))  # type: ignore[arg-type]  # waited for above
            finally:
                with self._condition:
                    self._busy = False
                    self._condition.notify_all()

    def _copy(self, checkpoint: Path) -> str:
        """Copy a checkpoint in a process, and return the line for the log."""
        job = {"checkpoint": str(checkpoint), "parent": os.getpid(), **asdict(self._destination)}
        command = [sys.executable, "-c", _PROGRAM.format(path=sys.path)]
        try:
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                self._process = process
                output, errors = process.communicate(json.dumps(job))
        except OSError as error:
            return self._failure(checkpoint, cause_of(error))
        finally:
            self._process = None
        try:
            result = json.loads(output.splitlines()[-1])
        except (ValueError, IndexError):
            last = errors.strip().splitlines()[-1:] or [
                f"its process ended with exit code {process.returncode}"
            ]
            return self._failure(checkpoint, last[0])
        if "failure" in result:
            return self._failure(checkpoint, result["failure"])
        size = f"{result['copied_bytes'] / 2**20:.1f} MiB in {result['seconds']:.1f} s"
        return f"copied {checkpoint.name} to {self._destination.address}/{result['folder']} ({size})"

    def _failure(self, checkpoint: Path, reason: str) -> str:
        if not checkpoint.is_dir():
            return (
                f"not copied to {self._destination.address}: {checkpoint}, which was deleted before its turn"
            )
        return (
            f"error: checkpoint.storage: {checkpoint.name} was not copied: {reason.rstrip('.')}. The checkpoint on the "
            "disk is complete; the next one is copied as usual."
        )


def run_job() -> None:
    """Copy the checkpoint of a job, which is JSON on stdin, and print the result as JSON. The main program of a copy.

    Signals of the terminal and the scheduler are ignored: the training process decides. Dies with it.
    """
    job = json.load(sys.stdin)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != job["parent"]:
        return
    began = time.monotonic()
    try:
        storage = open_storage(job["address"], job["options"])
        uploaded = upload_checkpoint(
            Path(job["checkpoint"]),
            storage,
            keep=job["keep"],
            retain_interval=job["retain_interval"],
            owner=job["owner"] and StorageOwner(**job["owner"]),
        )
    except OSError as error:
        failure = str(error) if isinstance(error, StorageError) else cause_of(error)
        print(json.dumps({"failure": failure}))
        return
    print(json.dumps({**asdict(uploaded), "seconds": time.monotonic() - began}))
