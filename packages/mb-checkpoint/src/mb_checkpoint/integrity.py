"""The newest checkpoint whose files hold what they held when they were written, as one process alone finds it."""

from collections.abc import Callable, Mapping
from pathlib import Path

from mb_checkpoint.errors import ManifestError
from mb_checkpoint.locks import reader_lock
from mb_checkpoint.manifest import find_hash_mismatches, read_manifest
from mb_checkpoint.select import SelectedCheckpoint, select_checkpoint

MAX_SHOWN = 5
"""Damaged files that a reason names."""


def first_intact(
    find: Callable[[Mapping[Path, str]], SelectedCheckpoint | None],
    *,
    contents: bool = True,
    progress: Callable[[int], object] = lambda _bytes: None,
) -> SelectedCheckpoint | None:
    """Return what `find` names, damaged ones passed over for older ones; None where it names nothing.

    Not collective: this process reads all files of what is found. Ranks of a run share that in `load_checkpoint`.

    Args:
        find: Returns what would be read, but for the folders it is told are damaged, with the reason.
        contents: Compare contents with the manifest; False: what `find` looks at is enough.
        progress: Told each number of bytes read.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: Whatever `find` raises.
    """
    rejected: dict[Path, str] = {}
    while True:
        chosen = find(rejected)
        if chosen is None or not contents:
            return chosen
        with reader_lock(chosen.path):
            damage = _damage(chosen.path, progress)
        if damage is None:
            return chosen
        rejected[chosen.path] = damage


def newest_intact(
    path: Path | str, *, progress: Callable[[int], object] = lambda _bytes: None
) -> SelectedCheckpoint | None:
    """Return the newest sound checkpoint that a path stands for, as `select_checkpoint` does; None without any.

    Raises:
        CheckpointNotFoundError: There are some, and none is sound.
        IncompleteCheckpointError: The path is one checkpoint, and it is damaged.
    """
    return first_intact(lambda rejected: select_checkpoint(path, rejected=rejected), progress=progress)


def _damage(path: Path, progress: Callable[[int], object]) -> str | None:
    try:
        manifest = read_manifest(path)
    except (ManifestError, OSError) as error:
        return str(error)
    if manifest is None:
        return None
    found = find_hash_mismatches(path, manifest.files, progress=progress)
    more = f"; and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    return "; ".join(found[:MAX_SHOWN]) + more if found else None
