"""Text file of lines on a disk that may be full for a while: what cannot be written is kept, and written later."""

from collections import deque
from pathlib import Path

from mb_metrics.append_file import AppendFile

KEPT = "its lines are kept in memory and written when that is possible again"
"""What happens after a failure, for the message of a caller."""
MAX_KEPT = 20_000
"""Number of pieces that are kept; older ones are lost."""


class LineFile:
    """Text file to which lines are appended.

    Lines are in the file when the call returns, completely or not at all, so that readers never see a part of one. The
    file is opened for each call: a folder that was deleted and made again receives the lines as well.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._kept: deque[bytes] = deque(maxlen=MAX_KEPT)
        self._lost = 0

    def append(self, lines: str) -> str | None:
        """Append lines, and before them those that could not be written so far.

        Returns:
            Why the first of them could not be written. None if all were written, and while a failure lasts that has
            been returned, so that a caller reports it once.
        """
        failed_before = bool(self._kept)
        self._lost += len(self._kept) == MAX_KEPT
        self._kept.append(f"{lines}\n".encode())
        problem = self._write_kept()
        return None if problem is None or failed_before else f"{self._path}: {problem}"

    def close(self) -> str | None:
        """Write what was kept; return how many lines could not be written and why, and None if there are none."""
        problem = self._write_kept() if self._kept else None
        number = self._lost + sum(piece.count(b"\n") for piece in self._kept)
        if not number:
            return None
        return f"{self._path}: {number} lines were not written ({problem or 'too many of them waited'})"

    def _write_kept(self) -> str | None:
        try:
            file = AppendFile(self._path)
            try:
                file.append(b"".join(self._kept))
            finally:
                file.close()
        except OSError as error:
            return (error.strerror or str(error)).lower()
        self._kept.clear()
        return None
