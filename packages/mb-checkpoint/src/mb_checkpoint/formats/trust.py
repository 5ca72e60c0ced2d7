"""Folders whose files may be unpickled without restrictions. Standard library only."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_trusted: ContextVar[tuple[Path, ...]] = ContextVar("_trusted", default=())


@contextmanager
def trusted(*folders: Path | str) -> Iterator[None]:
    """Lift the restrictions on unpickling for files below these folders, within this block and thread.

    The authors of files there can execute any code when the files are read.
    """
    token = _trusted.set((*_trusted.get(), *(Path(folder).resolve() for folder in folders)))
    try:
        yield
    finally:
        _trusted.reset(token)


def is_trusted(path: Path) -> bool:
    """Return whether a file or folder is below a folder that the caller trusts."""
    return any(path.resolve().is_relative_to(folder) for folder in _trusted.get())
