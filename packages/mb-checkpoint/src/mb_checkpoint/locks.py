"""A reader says that it is reading, so that nobody deletes a checkpoint under its hands; a writer, that it writes."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mb_checkpoint.errors import CheckpointFolderError

WRITER = ".writer"
"""File in a folder of checkpoints that says, to people, which process writes there; the lock is on the folder."""


@contextmanager
def reading(directory: Path) -> Iterator[None]:
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


@contextmanager
def claimed(directory: Path) -> Iterator[bool]:
    """Keep new readers out during the block; yield False where a process holds the lock of `reading`.

    True without a lock where the file system knows none.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        except OSError:
            free = True
        yield free
    finally:
        os.close(descriptor)


@contextmanager
def writing(root: Path, *, run: str) -> Iterator[None]:
    """Be the only one that saves below a folder of checkpoints, which is made, while the block runs.

    The lock ends with the block or with the process, however that ends; readers are not kept out. On file systems
    without locks on folders it does nothing.

    Args:
        root: The folder with trackers and `iter_*` folders.
        run: What people know this process by, such as its run folder.

    Raises:
        CheckpointFolderError: Another process saves there.
    """
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            raise CheckpointFolderError(
                f"checkpoint.save: {root}: {writer_of(root)} saves there, and two would delete each other's unfinished "
                "checkpoints. Wait until it has ended, or choose another folder with checkpoint.save."
            ) from taken
        except OSError:
            pass  # no locks here
        with suppress(OSError):
            (root / WRITER).write_text(f"process {os.getpid()} on {socket.gethostname()} ({run})")
        try:
            yield
        finally:
            with suppress(OSError):
                (root / WRITER).unlink()
    finally:
        os.close(descriptor)


def writer_of(root: Path) -> str:
    """Return what the process that holds the lock of `writing` has written about itself."""
    try:
        return (root / WRITER).read_text(errors="replace").strip() or "another process"
    except OSError:
        return "another process"
