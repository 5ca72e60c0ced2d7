"""Locks on folders, by which the processes of several runs exclude each other.

* `reader_lock` on the folder of a checkpoint, while it is read: prevents its deletion.
* `writer_lock` on a folder of checkpoints, during a run that saves there: excludes other writers.
* `exclusive_lock` on any other folder that one process at a time may use, such as the folder of a run.
* `try_exclusive_lock` on either, while `prune` deletes: on the folder of a checkpoint against readers, on a folder of
  checkpoints against writers.

All are locks of the operating system (flock) on the folder itself, and are released if the process dies.
"""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from mb_checkpoint.errors import CheckpointFolderError

WRITER_FILE = ".writer"
"""File in a folder of checkpoints with the description of its writer, for messages; it is not the lock."""


@contextmanager
def reader_lock(directory: Path) -> Iterator[None]:
    """Hold a shared lock on the folder of a checkpoint for the block.

    Waits without a timeout while another process holds an exclusive lock. Does nothing on file systems without folder
    locks, and for folders that do not exist or that this user cannot open.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


LockState = Literal["acquired", "taken", "unknown"]
"""State of a lock: acquired by the caller, taken by another holder, or unknown on file systems without locks."""

LOCK_TIMEOUT_SECONDS = 10.0
"""Time that a writer waits for a lock: `prune` holds it while it deletes, and child processes of a killed run hold it
for some seconds."""
POLL_SECONDS = 0.1
"""Time between two attempts to acquire a lock."""


@contextmanager
def try_exclusive_lock(directory: Path) -> Iterator[LockState]:
    """Try to acquire an exclusive lock on a folder for the block, without waiting; yield whether it was acquired.

    The block runs in any case, and must check the state: only "acquired" excludes other processes.

    Raises:
        OSError: The folder cannot be opened.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock: LockState = "acquired"
        except BlockingIOError:
            lock = "taken"
        except OSError:
            lock = "unknown"
        yield lock
    finally:
        os.close(descriptor)


@contextmanager
def writer_lock(
    root: Path,
    *,
    run: str,
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the exclusive right to save below a folder of checkpoints for the block; create the folder.

    Readers are not excluded: they lock the folders below. On file systems without folder locks no process is excluded.
    The block runs with a file in the folder that describes this process, for the messages of others.

    Args:
        root: Folder of checkpoints, with trackers and `iter_*` folders.
        run: Description of this run, such as its run folder.
        timeout_seconds: Time to wait for a holder that is about to release: a deleting `prune`, the children of a
            killed run.
        clock: Monotonic clock in seconds.
        sleep: Function that waits for a number of seconds.

    Raises:
        CheckpointFolderError: Another process saves there.
    """
    root.mkdir(parents=True, exist_ok=True)

    def refusal() -> Exception:
        return CheckpointFolderError(
            f"checkpoint.save: {root}: {describe_writer(root)} saves there. Two writers would delete each other's "
            "unfinished checkpoints. Wait until it has ended, or set checkpoint.save to another folder."
        )

    with exclusive_lock(root, refusal, timeout_seconds=timeout_seconds, clock=clock, sleep=sleep):
        with suppress(OSError):
            (root / WRITER_FILE).write_text(f"process {os.getpid()} on {socket.gethostname()} ({run})")
        try:
            yield
        finally:
            with suppress(OSError):
                (root / WRITER_FILE).unlink()


@contextmanager
def exclusive_lock(
    directory: Path,
    refusal: Callable[[], Exception],
    *,
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold an exclusive lock on a folder for the block, and wait for it up to `timeout_seconds`.

    The lock ends with the process. On file systems without folder locks no process is excluded.

    Args:
        directory: Folder that exists.
        refusal: Returns the error to raise if another process holds the lock for all that time.
        timeout_seconds: Time to wait: the children of a killed process hold its lock for some seconds.
        clock: Monotonic clock in seconds.
        sleep: Function that waits for a number of seconds.

    Raises:
        OSError: The folder cannot be opened.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if not _acquire(descriptor, timeout_seconds=timeout_seconds, clock=clock, sleep=sleep):
            raise refusal()
        yield
    finally:
        os.close(descriptor)


def _acquire(
    descriptor: int,
    *,
    timeout_seconds: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> bool:
    """Acquire an exclusive lock on an open folder, waiting up to `timeout_seconds`; return whether it succeeded.

    Returns True on file systems without folder locks. Closing the descriptor releases the lock.
    """
    until = clock() + timeout_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock() >= until:
                return False
            sleep(POLL_SECONDS)
        except OSError:
            return True
        else:
            return True


def describe_writer(root: Path) -> str:
    """Return the description of the holder of `writer_lock`; "another process" if there is none."""
    try:
        return (root / WRITER_FILE).read_text(errors="replace").strip() or "another process"
    except OSError:
        return "another process"
