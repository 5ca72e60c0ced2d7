"""Files of a build, each written completely or not at all, on a file system or in object storage."""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mb_data.text.input_files import is_local

WORK_PREFIX = ".work-"
"""Beginning of the names of folders in which files are written before they are moved. Two processes may build a shard
at once, when one of them was taken for dead."""

_BLOCK = 1 << 22


def move(file: Path, target: Path) -> None:
    """Move a file within a file system, or copy it to object storage, where it appears when it is complete."""
    if is_local(target):
        file.replace(target)
        return
    with file.open("rb") as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, _BLOCK)


def write_text(path: Path, text: str) -> None:
    """Write a text file, completely or not at all."""
    _write(path, lambda stream: stream.write(text.encode()))


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array of numbers in NumPy's format, completely or not at all."""
    _write(path, lambda stream: np.save(stream, array, allow_pickle=False))


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    with TemporaryDirectory(prefix=WORK_PREFIX, dir=path.parent if is_local(path) else None) as work:
        with Path(work, path.name).open("wb") as stream:
            write(stream)
        move(Path(work, path.name), path)


def read_array(path: Path) -> NDArray[Any]:
    """Return an array of numbers."""
    with path.open("rb") as stream:
        array: NDArray[Any] = np.load(stream, allow_pickle=False)
    return array
