"""File that grows by whole pieces: a write that fails, as on a full disk, leaves no part behind.

A file that is deleted or moved while it is written, with its folder, is written again with its content, which the
operating system keeps as long as it is open.
"""

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path

from mb_metrics.errors import DamagedRunFileError

_logger = logging.getLogger(__name__)
_CHUNK = 1 << 20


def restore_if_deleted(path: Path, descriptor: int) -> bool:
    """Write an open file again if it was deleted or moved, with its content; return whether it was.

    Raises:
        OSError: it cannot be written; `FileExistsError` if another process has made a file of its name.
    """
    if os.fstat(descriptor).st_nlink and path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        position = 0
        while chunk := os.pread(descriptor, _CHUNK, position):
            file.write(chunk)
            position += len(chunk)
    _logger.warning(
        "%s: was deleted or moved while the run writes it; it is written again, with all its lines", path
    )
    return True


def require_regular_file(path: Path) -> None:
    """Raise if a path exists and is not a file: to open a named pipe would wait for its other end for ever.

    Raises:
        DamagedRunFileError: It is a folder, a named pipe or a device.
    """
    if path.exists() and not path.is_file():
        raise DamagedRunFileError(
            f"{path}: is not a file, but a folder, a named pipe or a device, and the run writes a file of this "
            "name. Remove it, or name another run folder."
        )


class AppendFile:
    """Binary file to which pieces are appended, each of them completely or not at all. One writer.

    Args:
        path: The file; it is created if it does not exist. Its folder exists.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._file = self._path.open("a+b", buffering=0)
        self._size = self._file.tell()

    def append(self, content: bytes) -> None:
        """Append a piece, and return when the operating system has it; a killed process does not lose it.

        Raises:
            OSError: it could not be written; the file has its previous length.
        """
        if restore_if_deleted(self._path, self._file.fileno()):
            self._file.close()
            self._file = self._path.open("a+b", buffering=0)
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
