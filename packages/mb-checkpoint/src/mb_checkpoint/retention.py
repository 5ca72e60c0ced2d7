"""Which old checkpoints to delete, and deleting them."""

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from mb_checkpoint.layout import steps_in
from mb_checkpoint.locks import claimed
from mb_checkpoint.select import tracked_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a round of deleting did."""

    removed: tuple[Path, ...] = ()
    """Folders that are gone."""
    kept_back: tuple[tuple[Path, str], ...] = ()
    """Folders that should be gone and are not, with the reason."""


def steps_to_remove(
    steps: Collection[int], *, keep: int, protected: int, retain_interval: int | None = None
) -> list[int]:
    """Return the steps beyond the `keep` newest ones, oldest first, never the protected one.

    Only steps up to the protected one count: newer folders belong to another line of the run. `keep=-1`
    removes nothing. Multiples of `retain_interval` stay too.

    Raises:
        ValueError: `keep` is 0 or below -1.

    >>> steps_to_remove([10, 20, 30, 40], keep=2, protected=40)
    [10, 20]
    >>> steps_to_remove([10, 20, 30, 40], keep=1, protected=40, retain_interval=20)
    [10, 30]
    """
    if keep == -1:
        return []
    if keep < 1:
        raise ValueError(
            f"checkpoint.most_recent_k: {keep} would delete the newest one. Use -1, or 1 or more."
        )
    older = sorted((step for step in steps if step < protected), reverse=True)
    return sorted(step for step in older[keep - 1 :] if retain_interval is None or step % retain_interval)


def prune(
    root: Path, *, keep: int, protected: int, retain_interval: int | None = None, dry_run: bool = False
) -> Pruned:
    """Delete the step folders beyond the `keep` newest ones; a folder that resists is reported, not raised.

    Call it on one rank, after the trackers name the protected step. What a tracker names, or a reader holds, stays.
    Each folder gets a hidden name first, so that no reader finds a half-deleted one.

    Args:
        root: Folder with the `iter_*` folders.
        keep: How many stay; -1: all.
        protected: The step that was just saved, or that is in use.
        retain_interval: Multiples of it stay for ever.
        dry_run: Delete nothing; `removed` is what would be.
    """
    found = steps_in(root)
    removed: list[Path] = []
    resisting: list[tuple[Path, str]] = []
    tracked = tracked_steps(root)
    for step in steps_to_remove(found, keep=keep, protected=protected, retain_interval=retain_interval):
        path = found[step]
        if step in tracked:
            resisting.append((path, "a tracker names it"))
            continue
        try:
            if _remove(path, dry_run=dry_run):
                removed.append(path)
            else:
                resisting.append((path, "it is being read"))
        except OSError as error:
            resisting.append((path, str(error)))
    return Pruned(removed=tuple(removed), kept_back=tuple(resisting))


def _remove(path: Path, *, dry_run: bool) -> bool:
    hidden = path.with_name(f".removing_{path.name}")
    with claimed(path) as free:
        if free and not dry_run:
            path.rename(hidden)
    if free and not dry_run:
        shutil.rmtree(hidden)
    return free
