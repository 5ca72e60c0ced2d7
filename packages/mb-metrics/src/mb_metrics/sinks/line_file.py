"""Text file of lines on a disk that may be full for a while: what cannot be written is kept, and written later."""

import errno
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from mb_metrics.sinks.append_file import restore_if_deleted

_COMPARED = 1 << 16
"""Bytes at the beginning of a file by which a copy is known."""

MAX_KEPT = 20_000
"""Number of pieces that are kept; older ones are lost."""


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
        self._held: BinaryIO | None = None
        self._warn = warn
        self._kept: deque[bytes] = deque(maxlen=MAX_KEPT)
        self._lost = 0

    def append(self, *pieces: str) -> None:
        """Append pieces of one or more lines, and before them those that could not be written so far."""
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
            # opened and closed for each piece: NFS writes lines of several machines over each other while it is open
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
            OSError: it cannot be written; `FileExistsError` if a file of its name is not, or not yet, a copy.
        """
        try:
            return restore_if_deleted(self._path, held.fileno())
        except FileExistsError:
            size = os.fstat(held.fileno()).st_size
            with self._path.open("rb") as file:
                is_complete = os.fstat(file.fileno()).st_size >= size
                compared = min(size, _COMPARED)
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
