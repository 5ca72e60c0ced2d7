"""Locks on folders: a reader prevents the deletion of its checkpoint, and a writer excludes other writers."""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from mb_checkpoint.errors import CheckpointFolderError

WRITER = ".writer"
"""File in a folder of checkpoints that describes the writing process to users; the lock itself is on the folder."""


@contextmanager
def reader_lock(directory: Path) -> Iterator[None]:
    """Hold a shared lock on a checkpoint folder for the block. The system releases it if the process dies.

    Does nothing on file systems without folder locks, and for folders that this user cannot open.
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


LockState = Literal["mine", "taken", "unknown"]
"""State of a lock: acquired by this process, held by another one, or unknown on file systems without locks."""

LOCK_TIMEOUT_SECONDS = 10.0
"""Time that a writer waits for a lock: `prune` holds it while it deletes, and child processes of a killed run hold it
for some seconds."""
POLL_SECONDS = 0.1


@contextmanager
def exclusive_lock(directory: Path) -> Iterator[LockState]:
    """Exclude readers and writers during the block; yield "taken" if `reader_lock` or `writer_lock` holds the lock."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock: LockState = "mine"
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

    The system releases the lock if the process dies. Readers are not excluded. Does nothing on file systems without
    folder locks.

    Args:
        root: The folder with trackers and `iter_*` folders.
        run: Description of this process for users, such as its run folder.
        timeout_seconds: Time to wait for a holder that is about to release: a deleting `prune`, the children of a
            killed run.
        clock: Monotonic clock in seconds.
        sleep: Function that waits for a number of seconds.

    Raises:
        CheckpointFolderError: Another process saves there.
    """
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        if not acquire_lock(descriptor, timeout_seconds=timeout_seconds, clock=clock, sleep=sleep):
            raise CheckpointFolderError(
                f"checkpoint.save: {root}: {describe_writer(root)} saves there. Two writers would delete each other's "
                "unfinished checkpoints. Wait until it has ended, or set checkpoint.save to another folder."
            )
        with suppress(OSError):
            (root / WRITER).write_text(f"process {os.getpid()} on {socket.gethostname()} ({run})")
        try:
            yield
        finally:
            with suppress(OSError):
                (root / WRITER).unlink()
    finally:
        os.close(descriptor)


def acquire_lock(
    descriptor: int,
    *,
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Acquire an exclusive lock on an open folder; return whether it succeeded, True without lock support.

    Waits up to `timeout_seconds`.
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
    """Return the description that the holder of `writer_lock` has written."""
    try:
        return (root / WRITER).read_text(errors="replace").strip() or "another process"
    except OSError:
        return "another process"
