"""A reader says that it is reading, so that nobody deletes a checkpoint under its hands; a writer, that it writes."""

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
"""File in a folder of checkpoints that says, to people, which process writes there; the lock is on the folder."""


@contextmanager
def reader_lock(directory: Path) -> Iterator[None]:
    """Hold a shared lock on a checkpoint folder. It ends with the block or with the process, however that ends.

    On file systems without locks on folders, and for folders that this user may not open, it does nothing.
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
"""Whose a folder is: ours for now, another process's, or nobody can tell, for the file system knows no locks."""

LOCK_TIMEOUT_SECONDS = 10.0
"""How long a writer waits for a lock: `prune` holds it while it deletes, and what a killed run had started holds it for
some seconds."""
POLL_SECONDS = 0.1


@contextmanager
def exclusive_lock(directory: Path) -> Iterator[LockState]:
    """Hold an exclusive lock on a folder for the block; yield whether it was acquired."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            claim: LockState = "mine"
        except BlockingIOError:
            claim = "taken"
        except OSError:
            claim = "unknown"
        yield claim
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
    """Be the only one that saves below a folder of checkpoints, which is made, while the block runs.

    The lock ends with the block or with the process, however that ends; readers are not kept out. On file systems
    without locks on folders it does nothing.

    Args:
        root: The folder with trackers and `iter_*` folders.
        run: What people know this process by, such as its run folder.
        timeout_seconds: Seconds to wait for one who is about to let go: a deleting `prune`, the children of a killed run.
        clock: Seconds from any start.
        sleep: Waits so many seconds.

    Raises:
        CheckpointFolderError: Another process saves there, and goes on.
    """
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        if not acquire_lock(descriptor, timeout_seconds=timeout_seconds, clock=clock, sleep=sleep):
            raise CheckpointFolderError(
                f"checkpoint.save: {root}: {describe_writer(root)} saves there, and two would delete each "
                "other's unfinished checkpoints. Wait until it has ended, or choose another folder with checkpoint.save."
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
    """Lock an open folder for this process alone, and say whether that was possible; also yes where there are no locks.

    Waits `timeout_seconds` seconds at the most.
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
    """Return what the process that holds the lock of `writer_lock` has written about itself."""
    try:
        return (root / WRITER).read_text(errors="replace").strip() or "another process"
    except OSError:
        return "another process"
