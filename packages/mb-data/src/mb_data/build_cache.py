"""Cache folders that are built under a temporary name and renamed when they are complete.

A folder in the cache either is complete or does not exist. Processes of one machine build a folder one at a time; if
those of two machines build the same one, the later one finds the result of the earlier one and discards its own. A
killed build leaves a `.building-*` folder that is never read.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from mb_data.errors import CorpusError

Content = TypeVar("Content")


def resolve_cache_dir(cache_dir: str | None, *, environment: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder: the argument, or else `$MB_CACHE_DIR`, or else `~/.cache/mb-trainer`.

    `environment` contains the variable; None means `os.environ`.
    """
    environment = os.environ if environment is None else environment
    return Path(cache_dir or environment.get("MB_CACHE_DIR") or "~/.cache/mb-trainer").expanduser()


def load_or_build(
    folder: Path, *, load: Callable[..., Content | None], build: Callable[[Path], None]
) -> Content:
    """Load the content of a cache folder. If it is missing or incomplete, build it in a temporary folder and rename it.

    Processes of one machine that need the same folder build it once: the others wait until it is complete.

    Args:
        folder: Path of the cache folder.
        load: Called as `load(folder, reused=...)`. Returns None if the folder is missing or incomplete.
        build: Called with an empty folder, which it fills.

    Raises:
        CorpusError: The folder was modified concurrently.
    """
    if (content := load(folder, reused=True)) is not None:
        return content
    folder.parent.mkdir(parents=True, exist_ok=True)
    with one_builder(folder):
        if (content := load(folder, reused=True)) is not None:
            return content
        building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".building-{folder.name}-"))
        try:
            build(building)
            reused = not commit_build(building, folder, load=load)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        if (content := load(folder, reused=reused)) is None:
            raise CorpusError(f"{folder}: was changed while it was being built. Run again.")
        return content


@contextmanager
def one_builder(folder: Path) -> Iterator[None]:
    """Wait for another process that builds the folder. A file system without locks lets both build it."""
    file = folder.with_name(f".lock-{folder.name}")
    with file.open("w", encoding="utf-8") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def commit_build(building: Path, folder: Path, *, load: Callable[..., object]) -> bool:
    """Rename a finished build to its final path. Return False if another process has completed the folder first."""
    if folder.exists():
        if load(folder, reused=True) is not None:
            return False
        shutil.rmtree(folder, ignore_errors=True)
    try:
        # Atomic. Fails if another process has renamed its build after the check above.
        building.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        return False
    return True
