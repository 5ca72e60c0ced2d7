"""Errors of the operating system that mean that this user cannot use a path."""

from __future__ import annotations

import errno
import os

_NUMBERS = frozenset(
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EROFS", "ENOENT", "ENAMETOOLONG", "ELOOP", "ENOTDIR", "EISDIR", "EEXIST")
)


def unusable_path(error: OSError) -> str | None:
    """Return the message for the user, or None for an error that the user did not cause with a path."""
    if error.errno not in _NUMBERS or error.filename is None:
        return None
    advice = "Name another path, or change who may use it."
    return f"{os.fsdecode(error.filename)}: cannot be used ({error.strerror}). {advice}"
