"""Folders that are made once: under another name, and renamed when they are whole.

Such a folder is there completely or not at all; of two processes that make the same one, the later finds the earlier
one's and throws its own away. A killed build leaves a `.building-*` folder that nobody reads.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from mb_data.errors import CorpusError

Found = TypeVar("Found")


def resolve_cache_dir(cache_dir: str | None, *, environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder for prepared data: the given one, `$MB_CACHE_DIR`, or `~/.cache/mb-trainer`.

    `environment` holds the variable; None: `os.environ`.
    """
    environment = os.environ if environment is None else environment
    return Path(cache_dir or environment.get("MB_CACHE_DIR") or "~/.cache/mb-trainer").expanduser()


def load_or_build(folder: Path, *, load: Callable[..., Found | None], build: Callable[[Path], None]) -> Found:
    """Return what is in a folder; without anything whole there, build it elsewhere and rename it.

    Args:
        folder: Its place.
        load: Called as (folder, reused=); returns None where nothing whole is there.
        build: Fills an empty folder.

    Raises:
        CorpusError: The folder was changed in the meantime.
    """
    if (found := load(folder, reused=True)) is not None:
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".building-{folder.name}-"))
    try:
        build(building)
        reused = not commit_build(building, folder, load=load)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    result = load(folder, reused=reused)
    if result is None:
        raise CorpusError(f"{folder}: was changed while it was being made. Try again.")
    return result


def commit_build(building: Path, folder: Path, *, load: Callable[..., object]) -> bool:
    """Rename a finished build to its place; False when another process has put a whole one there."""
    if folder.exists():
        if load(folder, reused=True) is not None:
            return False
        shutil.rmtree(folder, ignore_errors=True)
    try:
        building.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        return False
    return True
