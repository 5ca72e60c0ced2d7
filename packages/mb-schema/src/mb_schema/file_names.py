"""Paths made from names in files: each is a file below its own folder, or is rejected."""

import os
from pathlib import Path

LONGEST = 1024
"""Characters of the longest name."""


class FileNameError(ValueError):
    """A name is not that of a file below its folder."""


def checked_name(name: object) -> str:
    """Return a name: a relative path with forward slashes, without `.` and `..`.

    Raises:
        FileNameError: It is something else.
    """
    if not isinstance(name, str):
        raise FileNameError(f"names a {type(name).__name__} as a file")
    parts = name.split("/")
    if not name.isprintable() or len(name) > LONGEST or any(part in ("", ".", "..") for part in parts):
        raise FileNameError(f"names {name[:60]!r}, which is not a file below its folder")
    return name


def path_inside(folder: Path, name: object) -> Path:
    """Return the path of a file below a folder. The file need not exist.

    Raises:
        FileNameError: The name is not that of a file below the folder, or a link leads out of it.
    """
    path = folder / checked_name(name)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise FileNameError(f"names {str(name)[:60]!r}, a link that leads out of its folder")
    return path
