"""Data files that stay mapped into memory: their limit, and those that change. Standard library only."""

import mmap
import resource
import time
from pathlib import Path

from mb_data.errors import IndexedFormatError, OpenFilesError

SUFFIXES = (".bin", ".idx", ".npy")
"""Suffixes of the data files that are mapped into memory."""

RESERVE = 256
"""Files that the rest of the process may open: libraries, sockets, checkpoints, logs."""


def allow_open_files(number: int, *, purpose: str) -> None:
    """Raise the soft limit of open files of this process, if `number` more would exceed it.

    Args:
        number: Files that stay open.
        purpose: What they are opened for, for the message.

    Raises:
        OpenFilesError: The hard limit, which an administrator sets, is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = number + RESERVE
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise OpenFilesError(
            f"{purpose}: {number:,} files stay open, because each one is mapped into memory, in addition to up to "
            f"{RESERVE} others, and this process may open {hard:,} (ulimit -n). Have the limit raised, or merge the "
            "files into fewer pairs."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def require_complete(mapped: mmap.mmap | None, file: str | Path) -> None:
    """Raise if a mapped file is shorter than its mapping; call it before a read, which would kill this process.

    Reads the size of the open file, which takes about a microsecond.

    Args:
        mapped: The mapping; None: the file is not mapped.
        file: Name of the file, for the message.

    Raises:
        IndexedFormatError: The file was cut short.
    """
    if mapped is not None and (size := mapped.size()) < len(mapped):
        raise cut_short(file, size=size, expected=len(mapped))


def cut_short(file: str | Path, *, size: int, expected: int) -> IndexedFormatError:
    """Return the error about a file that is shorter than at the start of the run."""
    return IndexedFormatError(
        f"{file}: was cut short from {expected} to {size} bytes while it is read. A mapped read beyond the end of a "
        "file kills the process (SIGBUS), and another one returns undefined tokens. Restore the file, and start again: "
        "the run resumes."
    )


def changed_data_files(*, since: float, maps: str = "/proc/self/maps") -> list[str]:
    """Return a line for each mapped data file that was changed or deleted since a time, in seconds since the epoch.

    A file that is cut short kills the process that reads it (SIGBUS), and one that is overwritten holds token ids
    outside of the vocabulary: neither error names the file. Empty where the system does not list mapped files.
    """
    try:
        mapped = sorted(_mapped(maps).items())
    except OSError:
        return []
    lines = []
    for name, end in mapped:
        try:
            stat = Path(name).stat()
        except OSError:
            lines.append(f"{name}: was deleted while the run reads it")
            continue
        if stat.st_mtime > since:
            at = time.strftime("%H:%M:%S", time.localtime(stat.st_mtime))
            # a mapping ends with the page of the last byte
            how = f"cut short to {stat.st_size} bytes" if stat.st_size <= end - mmap.PAGESIZE else "changed"
            lines.append(f"{name}: was {how} at {at}, while the run reads it; its samples are damaged")
    return lines


def _mapped(maps: str) -> dict[str, int]:
    """Return the end of the mapped part of each data file, in bytes."""
    # a line: address range, permissions, offset in the file, device, inode, and the path of the file if there is one
    ends: dict[str, int] = {}
    for line in Path(maps).read_text(errors="replace", encoding="utf-8").splitlines():
        addresses, _permissions, offset, _device, _inode, *path = line.split(maxsplit=5)
        name = "".join(path).removesuffix(" (deleted)")
        if name.endswith(SUFFIXES):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            ends[name] = max(ends.get(name, 0), int(offset, 16) + end - begin)
    return ends
