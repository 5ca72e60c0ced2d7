"""Copying the checkpoints of a run to a storage, in a thread and a process of each rank.

Each rank copies the files that it wrote (`upload_share`). Rank 0 decides which checkpoints are copied, and adds the
manifest and `latest.json` when all ranks are done (`upload_checkpoint`). If a rank fails, rank 0 copies its files.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mb_checkpoint.errors import StorageError, cause_of
from mb_checkpoint.save.commit_barrier import CommitBarrier, KeyValueStore
from mb_checkpoint.save.spawn import depend_on_parent
from mb_checkpoint.storage.checkpoints import upload_checkpoint, upload_share
from mb_checkpoint.storage.owner import StorageOwner
from mb_checkpoint.storage.storage import open_storage

T = TypeVar("T")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRanks:
    """Ranks that copy together."""

    store: KeyValueStore
    """Store that they share."""
    rank: int
    world_size: int
    name: str
    """Name of these copies in the store, unique within a run."""


LONGEST_PAUSE_SECONDS = 10.0
"""Longest time between two looks of a rank at the store."""
COPY, SKIP = "copy", "skip"
"""Decisions of rank 0."""


class StorageUploader:
    """Copies checkpoints to a storage in the background, one at a time, in the order of their steps.

    The copy is made in a separate process without torch, so that the training loop shares neither the interpreter nor
    its memory with it. While a copy is in progress, only the last checkpoint that is submitted is kept in line. After a
    failure the training continues, and the next checkpoint is copied as usual.

    Args:
        destination: The storage.
        log: Receives a line for each copy, from a thread.
        ranks: The ranks, each of which has an uploader and submits the same checkpoints; None: this process alone.
    """

    def __init__(
        self, destination: Destination, *, log: Callable[[str], object], ranks: UploadRanks | None = None
    ) -> None:
        self._destination = destination
        self._log = log
        self._ranks = ranks
        self._leads = ranks is None or ranks.rank == 0
        self._condition = threading.Condition()
        self._line: list[tuple[int, Path]] = []
        self._submitted = 0
        self._stopped = threading.Event()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None

    def submit(self, checkpoint: Path) -> None:
        """Copy a committed checkpoint. Returns at once; replaces a submitted one whose copy has not begun."""
        with self._condition:
            if self._leads:
                for number, waiting in self._line:
                    self._log(
                        f"not copied to {self._destination.address}: {waiting}, as {checkpoint.name} follows"
                    )
                    self._decide(number, SKIP)
                self._line.clear()
            self._submitted += 1
            self._line.append((self._submitted, checkpoint))
            self._stopped.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="storage-uploader", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    @property
    def busy(self) -> bool:
        """Whether a copy is in progress or in line."""
        with self._condition:
            return self._busy or bool(self._line)

    def wait(self) -> None:
        """Wait until all copies have ended."""
        with self._condition:
            self._condition.wait_for(lambda: not self._busy and not self._line)

    def stop(self) -> None:
        """Kill a copy in progress; a later run continues it."""
        with self._condition:
            if self._leads:
                for number, _ in self._line:
                    self._decide(number, SKIP)
            self._line.clear()
            self._stopped.set()
            if self._process is not None:
                self._process.kill()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._line)
                (number, checkpoint), self._busy = self._line.pop(0), True
            try:
                if self._ranks is None:
                    self._log(self._copy(checkpoint))
                elif self._leads:
                    self._log(self._copy_with_others(checkpoint, number, self._ranks))
                else:
                    self._help(checkpoint, number, self._ranks)
            except BaseException:  # of the store or the log: the next checkpoint starts another thread
                with self._condition:
                    self._thread, self._busy = None, False
                    self._line.clear()
                    self._condition.notify_all()
                raise
            with self._condition:
                self._busy = False
                self._condition.notify_all()

    def _decide(self, number: int, decision: str) -> None:
        if self._ranks is not None:
            self._ranks.store.set(f"mb_checkpoint/{self._ranks.name}/{number}/decision", decision)

    def _barrier(self, number: int, ranks: UploadRanks) -> CommitBarrier:
        name = f"{ranks.name}/{number}"
        return CommitBarrier(ranks.store, rank=ranks.rank, world_size=ranks.world_size, name=name)

    def _help(self, checkpoint: Path, number: int, ranks: UploadRanks) -> None:
        """Copy the files of this rank if rank 0 decides to copy a checkpoint, and report the end."""
        key = f"mb_checkpoint/{ranks.name}/{number}/decision"
        decided = self._poll(lambda: ranks.store.get(key) if ranks.store.check([key]) else None)
        if decided == COPY.encode():
            result = self._run({"share": [ranks.rank, ranks.world_size]}, checkpoint)
            self._barrier(number, ranks).report(result.get("failure", ""))

    def _copy_with_others(self, checkpoint: Path, number: int, ranks: UploadRanks) -> str:
        """Copy a checkpoint with the other ranks, and return the line for the log."""
        began, barrier = time.monotonic(), self._barrier(number, ranks)
        self._decide(number, COPY)
        barrier.report(self._run({"share": [0, ranks.world_size]}, checkpoint).get("failure", ""))
        failures = self._poll(barrier.failures)
        if failures is None:
            return self._failure(checkpoint, "the copy was stopped")
        for failure in failures:
            self._log(f"{checkpoint.name}: {failure}; rank 0 copies these files")
        return self._copy(checkpoint, shared=not failures, began=began)

    def _poll(self, look: Callable[[], T | None]) -> T | None:
        """Return the first result of `look` that is not None, called in growing pauses; None after `stop`."""
        pause = 0.1
        while (found := look()) is None and not self._stopped.wait(pause):
            pause = min(1.5 * pause, LONGEST_PAUSE_SECONDS)
        return found

    def _copy(self, checkpoint: Path, *, shared: bool = False, began: float | None = None) -> str:
        """Copy a checkpoint, or what is left of it, in a process, and return the line for the log."""
        began = time.monotonic() if began is None else began
        result = self._run({"shared": shared}, checkpoint)
        if "failure" in result:
            return self._failure(checkpoint, result["failure"])
        size = f"{result['total_bytes' if shared else 'copied_bytes'] / 2**20:.1f} MiB"
        by = f" by {self._ranks.world_size} ranks" if shared and self._ranks is not None else ""
        seconds = f"{time.monotonic() - began:.1f} s"
        return f"copied {checkpoint.name} to {self._destination.address}/{result['folder']} ({size} in {seconds}{by})"

    def _run(self, part: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
        """Run a job in a process; return its result, or the reason of its failure."""
        job = {"checkpoint": str(checkpoint), "parent": os.getpid(), **asdict(self._destination), **part}
        command = [sys.executable, "-c", _PROGRAM.format(path=sys.path)]
        try:
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                self._process = process
                output, errors = process.communicate(json.dumps(job))
        except OSError as error:
            return {"failure": cause_of(error)}
        finally:
            self._process = None
        try:
            result: dict[str, Any] = json.loads(output.splitlines()[-1])
        except (ValueError, IndexError):
            ended = f"its process ended with exit code {process.returncode}"
            return {"failure": (errors.strip().splitlines()[-1:] or [ended])[0]}
        return result

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
    """Copy the checkpoint of a job, JSON on stdin, and print the result as JSON. The main program of a copy."""
    job = json.load(sys.stdin)
    depend_on_parent(job["parent"])
    owner = job["owner"] and StorageOwner(**job["owner"])
    checkpoint, keep = Path(job["checkpoint"]), job["keep"]
    try:
        storage = open_storage(job["address"], job["options"])
        if "share" in job:
            rank, world_size = job["share"]
            upload_share(
                checkpoint, storage, owner=owner, rank=rank, world_size=world_size, read_back=keep >= 0
            )
            print(json.dumps({}))
            return
        uploaded = upload_checkpoint(
            checkpoint,
            storage,
            keep=keep,
            retain_interval=job["retain_interval"],
            owner=owner,
            shared=job["shared"],
        )
    except OSError as error:
        failure = str(error) if isinstance(error, StorageError) else cause_of(error)
        print(json.dumps({"failure": failure}))
        return
    print(json.dumps(asdict(uploaded)))
