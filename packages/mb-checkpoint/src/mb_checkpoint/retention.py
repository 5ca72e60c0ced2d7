"""Which old checkpoints to delete, and deleting them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from mb_checkpoint.commit import remove_folder
from mb_checkpoint.errors import CheckpointNotFoundError
from mb_checkpoint.layout import staging_directories, steps_in
from mb_checkpoint.locks import exclusive_lock
from mb_checkpoint.select import tracked_steps
from mb_checkpoint.verified_cache import VerifiedCache


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """What a round of deleting did."""

    removed: tuple[Path, ...] = ()
    """Folders that are gone."""
    not_removed: tuple[tuple[Path, str], ...] = ()
    """Folders that should be gone and are not, with the reason."""
    damaged: tuple[tuple[Path, str], ...] = ()
    """Folders that did not count among those to keep, because they are not whole, with the reason."""


def steps_to_remove(
    steps: Collection[int],
    *,
    keep: int,
    protected: int,
    retain_interval: int | None = None,
    is_intact: Callable[[int], bool] = lambda _step: True,
) -> list[int]:
    """Return the steps beyond the `keep` newest whole ones, oldest first, never the protected one.

    Only steps up to the protected one count: newer folders belong to another line of the run. `keep=-1`
    removes nothing. Multiples of `retain_interval` stay too.

    Args:
        steps: All that are there.
        keep: How many whole ones stay.
        protected: Stays in any case.
        retain_interval: Multiples of it stay; None: none does.
        is_intact: Says whether a step counts. Asked only where something might go, newest first, until enough are found.

    Raises:
        ValueError: `keep` is 0 or below -1, or `retain_interval` is below 1.

    >>> steps_to_remove([10, 20, 30, 40], keep=2, protected=40)
    [10, 20]
    >>> steps_to_remove([10, 20, 30, 40], keep=1, protected=40, retain_interval=20)
    [10, 30]
    >>> steps_to_remove([10, 20, 30, 40], keep=2, protected=40, is_intact=lambda step: step != 30)
    [10]
    """
    if keep != -1 and keep < 1:
        raise ValueError(
            f"checkpoint.most_recent_k: {keep} would delete the newest one. Use -1, or 1 or more."
        )
    if retain_interval is not None and retain_interval < 1:
        raise ValueError(
            f"checkpoint.save_retain_interval: {retain_interval} is no spacing in steps. Use 1 or more."
        )
    candidates = sorted((step for step in steps if step <= protected), reverse=True)
    may_go = {
        step
        for step in candidates
        if step != protected and (retain_interval is None or step % retain_interval)
    }
    if keep == -1 or not may_go & set(candidates[keep:]):
        return []
    counted = 0
    for place, step in enumerate(candidates):
        counted += is_intact(step)
        if counted == keep:
            return sorted(may_go & set(candidates[place + 1 :]))
    return []


def prune(
    root: Path,
    *,
    keep: int,
    protected: int | None = None,
    retain_interval: int | None = None,
    dry_run: bool = False,
    verified: VerifiedCache | None = None,
    contents: bool = True,
    unfinished: bool = False,
) -> PruneResult:
    """Delete the step folders beyond the `keep` newest whole ones; one that resists is reported, not raised.

    Call it on one rank, after the trackers name the protected step. What a tracker names, or a reader holds, stays.
    Each folder gets a hidden name first, so that no reader finds a half-deleted one. Where something is to be deleted,
    the newest are compared with their hashes first, each once in the life of `compared`, until `keep` of them are found
    whole; only what is older goes.

    Args:
        root: Folder with the `iter_*` folders.
        keep: How many stay; -1: all.
        protected: The step that was just saved, or that is in use; None: the newest whole one.
        retain_interval: Multiples of it stay for ever.
        dry_run: Delete nothing; `removed` is what would be.
        verified: What is known of them; None: nothing.
        contents: Compare contents; False: sizes alone.
        unfinished: Delete what saves left that did not end, too, unless a process holds the lock of `locks.writer_lock`, or
            the file system has no locks. Only where all who save there hold it: else this would delete what they
            are writing.

    Raises:
        ValueError: As `steps_to_remove`.
        CheckpointNotFoundError: No step is named, and no checkpoint is whole.
    """
    found = steps_in(root)
    known = verified or VerifiedCache()
    removed: list[Path] = []
    resisting: list[tuple[Path, str]] = []
    damaged: list[tuple[Path, str]] = []
    tracked = tracked_steps(root)

    def is_intact(step: int) -> bool:
        problems = known.problems(found[step], contents=contents)
        if problems:
            damaged.append((found[step], "; ".join(problems)))
        return not problems

    newest = next((step for step in found if is_intact(step)), None) if protected is None else protected
    if newest is None:
        listing = "; ".join(f"{path.name}: {reason}" for path, reason in damaged) or "none is there"
        raise CheckpointNotFoundError(f"{root}: no whole checkpoint to keep, so none is deleted ({listing}).")
    for step in steps_to_remove(
        found, keep=keep, protected=newest, retain_interval=retain_interval, is_intact=is_intact
    ):
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
    if unfinished:
        _remove_unfinished(root, removed, resisting, dry_run=dry_run)
    return PruneResult(removed=tuple(removed), not_removed=tuple(resisting), damaged=tuple(damaged))


KEPT_REASONS = {
    "taken": "a process saves there",
    "unknown": "whether a process saves there cannot be told: this file system has no locks",
}
"""Why an unfinished save stays."""


def _remove_unfinished(
    root: Path, removed: list[Path], resisting: list[tuple[Path, str]], *, dry_run: bool
) -> None:
    """Delete staging folders while nobody can begin to save there."""
    with exclusive_lock(root) as claim:
        for path in staging_directories(root):
            if claim != "mine":
                resisting.append((path, KEPT_REASONS[claim]))
                continue
            try:
                if not dry_run:
                    remove_folder(path)
                removed.append(path)
            except OSError as error:
                resisting.append((path, str(error)))


def _remove(path: Path, *, dry_run: bool) -> bool:
    hidden = path.with_name(f".removing_{path.name}")
    with exclusive_lock(path) as claim:
        free = claim != "taken"  # without locks, readers are not known, and old ones go all the same
        if free and not dry_run:
            path.rename(hidden)
    if free and not dry_run:
        remove_folder(hidden)
    return free
