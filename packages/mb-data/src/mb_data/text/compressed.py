"""Streams of compressed files, by suffix of any case: `.gz`, `.bz2`, `.xz`, and `.zst` with the extra `zstd`."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from mb_data.errors import BadDocumentError
from mb_data.libraries import import_library

_COMPRESSIONS = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bzip2",
    ".xz": "xz",
    ".zst": "zstd",
    ".zstd": "zstd",
}
"""Suffixes of the supported compressions, and their names."""

_BLOCK = 1 << 17


def compression(path: Path) -> str | None:
    """Return the name of the compression that the suffix of a file names; None for an uncompressed file."""
    return _COMPRESSIONS.get(path.suffix.lower())


def strip_compression(path: Path) -> Path:
    """Return the path without the suffix of a supported compression."""
    return path if compression(path) is None else path.with_suffix("")


def content_suffix(path: Path) -> str:
    """Return the suffix of the content of a file, in lower case and without that of a compression."""
    return strip_compression(path).suffix.lower()


class _ZstdReader(io.RawIOBase):
    """Decompressed content of zstd frames.

    Unlike the library's reader, which ends silently, it rejects a file that is truncated within a frame.
    """

    def __init__(self, raw: BinaryIO, library: Any) -> None:
        self._raw, self._decompressor = raw, library.ZstdDecompressor()
        self._frame: Any = None
        self._compressed = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer. Return the number of bytes; 0 at the end."""
        while not self._content:
            block = self._compressed or self._raw.read(_BLOCK)
            if not block and self._frame is not None:
                raise EOFError("the last frame is incomplete")
            if not block:
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            self._content, self._compressed = memoryview(self._frame.decompress(block)), b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._content))
        buffer[:size] = self._content[:size]
        self._content = self._content[size:]
        return size


@contextmanager
def decompressed(raw: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    """Yield the decompressed content of an open file; the file itself if its suffix is that of no compression.

    Raises:
        BadDocumentError: The content does not have the format of the suffix.
        FormatLibraryError: The file is a `.zst`, and zstandard is not installed.
    """
    kind = compression(path)
    if kind == "zstd":
        zstandard = import_library(
            "zstandard", where=str(path), purpose="decompresses .zst files", extra="zstd"
        )
        errors: tuple[type[Exception], ...] = (EOFError, zstandard.ZstdError)
        stream: Any = io.BufferedReader(_ZstdReader(raw, zstandard), _BLOCK)
    else:
        errors = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, OSError)
        readers: dict[str | None, Any] = {
            None: lambda file: file,
            "gzip": lambda file: gzip.GzipFile(fileobj=file),
            "bzip2": bz2.BZ2File,
            "xz": lzma.LZMAFile,
        }
        stream = readers[kind](raw)
    try:
        yield cast(BinaryIO, stream)
    except errors as error:
        if kind is None:
            raise
        raise BadDocumentError(
            f"{path}: cannot be decompressed ({error}); it is truncated, or not {kind}. Copy it again."
        ) from error
