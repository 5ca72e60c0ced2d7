"""File that grows by whole pieces: a write that fails, as on a full disk, leaves no part behind."""

import errno
import os
from contextlib import suppress
from pathlib import Path


class AppendFile:
    """Binary file to which pieces are appended, each of them completely or not at all. One writer.

    Args:
        path: The file; it is created if it does not exist. Its folder exists.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - `close` closes it
        self._size = self._file.tell()

    def append(self, content: bytes) -> None:
        """Append a piece, and return when the operating system has it; a killed process does not lose it.

        Raises:
            OSError: it could not be written; the file has its previous length.
        """
        rest = memoryview(content)
        self._file.truncate(self._size)  # if the attempt below failed before
        try:
            while rest:
                written = self._file.write(rest)
                if not written:
                    raise OSError(errno.EIO, "a write made no progress", self._file.name)
                rest = rest[written:]
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size += len(content)

    def fsync(self) -> None:
        """Force the content to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
