"""Locks on folders, by which the processes of several runs exclude each other.

* `reader_lock` on the folder of a checkpoint, while it is read: prevents its deletion.
* `writer_lock` on a folder of checkpoints, during a run that saves there: excludes other writers.
* `exclusive_lock` on any other folder that one process at a time may use, such as the folder of a run.
* `try_exclusive_lock` on either, while `prune` deletes: on the folder of a checkpoint against readers, on a folder of
  checkpoints against writers.

All are locks of the operating system (flock) on the folder itself, and are released if the process dies. Processes
that it has forked do not hold them.
"""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from mb_checkpoint.errors import CheckpointFolderError

WRITER_FILE = ".writer"
"""File in a folder of checkpoints with the description of its writer, for messages; it is not the lock."""

_OPEN: set[int] = set()
"""Descriptors of the folders that this process has opened for locks."""


def _close_inherited() -> None:
    """Close the copies of the descriptors in a fork: a lock lasts until each copy is closed, beyond its holder."""
    for descriptor in _OPEN:
        os.close(descriptor)
    _OPEN.clear()


os.register_at_fork(after_in_child=_close_inherited)


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Open a folder for the block; raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    _OPEN.add(descriptor)
    try:
        yield descriptor
    finally:
        if descriptor in _OPEN:  # it is closed in a fork that leaves the block
            _OPEN.remove(descriptor)
            os.close(descriptor)


@contextmanager
def reader_lock(directory: Path) -> Iterator[None]:
    """Hold a shared lock on the folder of a checkpoint for the block.

    Waits without a timeout while another process holds an exclusive lock. Does nothing on file systems without folder
    locks, and for folders that do not exist or that this user cannot open.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            fcntl.flock(stack.enter_context(_opened(directory)), fcntl.LOCK_SH)
        yield


LockState = Literal["acquired", "taken", "unknown"]
"""State of a lock: acquired by the caller, taken by another holder, or unknown on file systems without locks."""

LOCK_TIMEOUT_SECONDS = 10.0
"""Time that a writer waits for a lock, which `prune` holds while it deletes."""
POLL_SECONDS = 0.1
"""Time between two attempts to acquire a lock."""


@contextmanager
def try_exclusive_lock(directory: Path) -> Iterator[LockState]:
    """Try to acquire an exclusive lock on a folder for the block, without waiting; yield whether it was acquired.

    The block runs in any case, and must check the state: only "acquired" excludes other processes.

    Raises:
        OSError: The folder cannot be opened.
    """
    with _opened(directory) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock: LockState = "acquired"
        except BlockingIOError:
            lock = "taken"
        except OSError:
            lock = "unknown"
        yield lock


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
        timeout_seconds: Time to wait for a holder that is about to release, such as a deleting `prune`.
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
            (root / WRITER_FILE).write_text(
                f"process {os.getpid()} on {socket.gethostname()} ({run})", encoding="utf-8"
            )
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
        timeout_seconds: Time to wait for a holder that is about to release.
        clock: Monotonic clock in seconds.
        sleep: Function that waits for a number of seconds.

    Raises:
        OSError: The folder cannot be opened.
    """
    with _opened(directory) as descriptor:
        if not _acquire(descriptor, timeout_seconds=timeout_seconds, clock=clock, sleep=sleep):
            raise refusal()
        yield


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
        return (root / WRITER_FILE).read_text(errors="replace", encoding="utf-8").strip() or "another process"
    except OSError:
        return "another process"
