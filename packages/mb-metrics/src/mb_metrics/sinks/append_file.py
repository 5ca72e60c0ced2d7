"""Files that grow by complete pieces: a write that fails, as on a full disk, leaves no part of its piece.

`AppendFile` raises the error to its caller; `LineFile` keeps the lines and writes them later. A file that is deleted or
moved, alone or with its folder, is written again with its content, which the operating system keeps as long as the
file is open.
"""

import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mb_metrics.errors import DamagedRunFileError

_logger = logging.getLogger(__name__)
_CHUNK_BYTES = 1 << 20
_COMPARED_BYTES = 1 << 16
"""Bytes at the beginning of a file by which a copy of it is recognized."""

MAX_KEPT = 20_000
"""Number of pieces that a `LineFile` keeps; older ones are lost."""


def restore_if_deleted(path: Path, descriptor: int) -> bool:
    """Write an open file again, with its content, if it was deleted or moved; return whether it was.

    `descriptor` still refers to the deleted or moved file.

    Raises:
        OSError: it cannot be written, and nothing is left of the attempt; `FileExistsError` if another process has made
            a file of its name.
    """
    if os.fstat(descriptor).st_nlink and path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("xb")
    try:
        with file:
            position = 0
            while chunk := os.pread(descriptor, _CHUNK_BYTES, position):
                file.write(chunk)
                position += len(chunk)
    except OSError:
        # The next attempt would take an incomplete copy for the file of another process.
        path.unlink(missing_ok=True)
        raise
    _logger.warning(
        "%s: was deleted or moved while the run writes it; it is written again, with all its lines", path
    )
    return True


def require_regular_file(path: Path) -> None:
    """Raise if a path exists and is not a file. Opening a named pipe, for one, would wait for its other end.

    Raises:
        DamagedRunFileError: It is a folder, a named pipe or a device.
    """
    if path.exists() and not path.is_file():
        raise DamagedRunFileError(
            f"{path}: is not a file, but a folder, a named pipe or a device, and the run writes a file of this "
            "name. Remove it, or name another run folder."
        )


class AppendFile:
    """Binary file to which pieces are appended, each of them completely or not at all.

    A file that another object, rank or program writes at the same time keeps the pieces of all; one warning is logged.

    Args:
        path: The file; it is created if it does not exist. Its folder exists.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._file = self._path.open("a+b", buffering=0)
        self._size = self._file.tell()
        self._has_remains = False  # of a piece that failed, and could not be removed
        self._is_shared = False

    def append(self, content: bytes) -> None:
        """Append a piece, and return when the operating system has it; a killed process does not lose it.

        Raises:
            OSError: it could not be written; the file has its previous length.
        """
        if restore_if_deleted(self._path, self._file.fileno()):
            self._file.close()
            self._file = self._path.open("a+b", buffering=0)
        if self._has_remains:
            self._file.truncate(self._size)
            self._has_remains = False
        self._note_other_writers()
        rest = memoryview(content)
        try:
            while rest:
                written = self._file.write(rest)
                if not written:
                    raise OSError(errno.EIO, "a write made no progress", self._file.name)
                rest = rest[written:]
        except OSError:
            self._has_remains = True
            with suppress(OSError):
                self._file.truncate(self._size)
                self._has_remains = False
            raise
        self._size += len(content)

    def _note_other_writers(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size != self._size and not self._is_shared:
            self._is_shared = True
            _logger.warning(
                "%s: is changed by another sink, rank or program while this one writes it; the lines of all are kept, "
                "mixed. Give sinks to rank 0 only, and each run a file",
                self._path,
            )
        self._size = size

    def fsync(self) -> None:
        """Force the content to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class LineFile:
    """Text file to which lines are appended.

    Lines are in the file when the call returns, completely or not at all, so that readers never see a part of one. A
    file that is deleted or moved is written again with all its lines, by one of the processes that write it, unless
    another program has made one of its name.

    Args:
        path: The file.
        warn: Receives one message when the file cannot be written, and at the end if lines were lost.
    """

    def __init__(self, path: str | Path, *, warn: Callable[[str], object]) -> None:
        self._path = Path(path).absolute()
        self._held: BinaryIO | None = None  # keeps the content of a file that is deleted
        self._warn = warn
        self._kept: deque[bytes] = deque(maxlen=MAX_KEPT)  # pieces that are not in the file
        self._lost = 0

    def append(self, *pieces: str) -> None:
        """Append pieces of one or more lines, after those that could not be written so far.

        Does not raise OSError: pieces that cannot be written are kept in memory, up to `MAX_KEPT`.
        """
        failed_before = bool(self._kept)
        for piece in pieces:
            self._lost += len(self._kept) == MAX_KEPT
            self._kept.append(f"{piece}\n".encode())
        content = b"".join(self._kept)
        if not content:  # most ranks of a run never write a line, and should not open the file
            return
        try:
            if self._held is not None and self._was_restored(self._held):
                self._held.close()
                self._held = None
            # Opened for each call: on NFS, lines of several machines overwrite each other in a file that stays open.
            with self._path.open("ab", buffering=0) as file:
                if self._held is None:
                    self._held = self._path.open("rb")
                size = os.fstat(file.fileno()).st_size
                try:
                    if file.write(content) != len(content):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError:
                    file.truncate(size)
                    raise
        except OSError as error:
            if not failed_before:
                reason = (error.strerror or str(error)).lower()
                self._warn(
                    f"{self._path}: {reason}; its lines are kept in memory and written when that is possible"
                )
        else:
            self._kept.clear()

    def _was_restored(self, held: BinaryIO) -> bool:
        """Write the file again if it was deleted or moved; return whether this process or another one has done so.

        Raises:
            OSError: it cannot be written; `FileExistsError` if there is a file of its name that is not a complete copy.
        """
        try:
            return restore_if_deleted(self._path, held.fileno())
        except FileExistsError:
            size = os.fstat(held.fileno()).st_size
            with self._path.open("rb") as file:
                is_complete = os.fstat(file.fileno()).st_size >= size
                compared = min(size, _COMPARED_BYTES)
                if not is_complete or file.read(compared) != os.pread(held.fileno(), compared, 0):
                    raise
            return True

    def close(self) -> None:
        """Write what was kept, and close the file."""
        if self._kept:
            self.append()
        lost = self._lost + sum(piece.count(b"\n") for piece in self._kept)
        if lost:
            self._warn(f"{self._path}: {lost} lines were not written")
        if self._held is not None:
            self._held.close()
            self._held = None
