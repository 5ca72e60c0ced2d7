"""A reader says that it is reading, so that nobody deletes a checkpoint under its hands."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
