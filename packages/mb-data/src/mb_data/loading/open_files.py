"""Limit of the open files of this process, which memory-mapped datasets reach. The standard library only."""

import resource

from mb_data.errors import OpenFilesError

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
