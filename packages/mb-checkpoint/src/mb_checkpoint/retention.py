"""Which old checkpoints to delete, and deleting them."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mb_checkpoint.layout import steps_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a round of deleting did."""

    removed: tuple[Path, ...] = ()
    """Folders that are gone."""
    kept_back: tuple[tuple[Path, str], ...] = ()
    """Folders that should be gone and are not, with the reason."""


def steps_to_remove(steps: Sequence[int], *, keep: int, protected: int) -> list[int]:
    """Return the steps beyond the `keep` newest ones, oldest first, never the protected one.

    Only steps up to the protected one count: newer folders belong to another line of the run. `keep=-1`
    removes nothing.

    Raises:
        ValueError: `keep` is 0 or below -1.

    >>> steps_to_remove([10, 20, 30, 40], keep=2, protected=40)
    [10, 20]
    """
    if keep == -1:
        return []
    if keep < 1:
        raise ValueError(
            f"checkpoint.most_recent_k: {keep} would delete the newest one. Use -1, or 1 or more."
        )
    older = sorted((step for step in steps if step < protected), reverse=True)
    return sorted(older[keep - 1 :])


def prune(root: Path, *, keep: int, protected: int) -> Pruned:
    """Delete the step folders beyond the `keep` newest ones; a folder that resists is reported, not raised.

    Call it on one rank, after the trackers name the protected step. Each folder gets a hidden name first, so
    that no reader finds a half-deleted one.
    """
    found = steps_in(root)
    removed: list[Path] = []
    resisting: list[tuple[Path, str]] = []
    for step in steps_to_remove(list(found), keep=keep, protected=protected):
        path = found[step]
        hidden = path.with_name(f".removing_{path.name}")
        try:
            path.rename(hidden)
            shutil.rmtree(hidden)
            removed.append(path)
        except OSError as error:
            resisting.append((path, str(error)))
    return Pruned(removed=tuple(removed), kept_back=tuple(resisting))
