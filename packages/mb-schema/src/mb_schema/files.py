"""Files that are replaced as a whole. Standard library only."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replaced(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a path in the folder of `path` to write to, and rename it to `path` when the block ends.

    A reader sees the old or the new file, never a part of one, and so do processes that write it at the same time: each
    has a file of its own, `.NAME.HEX.part`, which only a kill leaves behind. If the block raises, the old file stays.

    Args:
        path: File to create or replace.
        durable: Force the new file and its name to the disk. Otherwise `path` may be old, new or empty after a power
            failure.

    Raises:
        OSError: The file cannot be written or renamed.
    """
    # not of tempfile, whose files only their owner can read
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    try:
        yield part
        if durable:
            fsync_path(part)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    if durable:
        fsync_path(path.parent)


def write_atomically(path: Path, text: str, *, durable: bool = False) -> None:
    """Create or replace a file of text in UTF-8 as `replaced` does."""
    with replaced(path, durable=durable) as part:
        part.write_text(text, encoding="utf-8")


def fsync_path(path: Path) -> None:
    """Force the content of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
