"""Retention of checkpoints: selection and deletion of old ones."""

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
    """Result of pruning."""

    removed: tuple[Path, ...] = ()
    """Folders that were deleted."""
    not_removed: tuple[tuple[Path, str], ...] = ()
    """Folders that should have been deleted, with the reason why they were not."""
    damaged: tuple[tuple[Path, str], ...] = ()
    """Folders that did not count among those to keep, because they are damaged, with the reason."""


def steps_to_remove(
    steps: Collection[int],
    *,
    keep: int,
    protected: int,
    retain_interval: int | None = None,
    is_intact: Callable[[int], bool] = lambda _step: True,
) -> list[int]:
    """Return the steps beyond the `keep` newest intact ones, oldest first, never the protected one.

    Only steps up to the protected one count: newer folders belong to another branch of the run. `keep=-1` removes
    nothing. Multiples of `retain_interval` are kept as well.

    Args:
        steps: All existing steps.
        keep: Number of intact steps to keep.
        protected: Step that is kept in any case.
        retain_interval: Multiples of it are kept; None disables this.
        is_intact: Returns whether a step counts. Called only if there is a candidate for deletion, newest first, until
            enough are found.

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
    for index, step in enumerate(candidates):
        counted += is_intact(step)
        if counted == keep:
            return sorted(may_go & set(candidates[index + 1 :]))
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
    """Delete the step folders beyond the `keep` newest intact ones; a folder that cannot be deleted is reported.

    Call it on one rank, after the trackers name the protected step. Checkpoints that a tracker names or a reader holds
    are kept. Each folder is first renamed to a hidden name, so that no reader finds a partially deleted one. If there
    is a candidate for deletion, the newest checkpoints are verified by their hashes first, each once in the lifetime of
    `verified`, until `keep` of them are found intact; only older ones are deleted.

    Args:
        root: Folder with the `iter_*` folders.
        keep: Number of checkpoints to keep; -1 keeps all.
        protected: Step that was just saved, or that is in use; None: the newest intact one.
        retain_interval: Multiples of it are never deleted.
        dry_run: Delete nothing; `removed` lists the folders that would be deleted.
        verified: Cache of verified checkpoints; None starts with an empty one.
        contents: Verify contents; False compares only sizes.
        unfinished: Also delete the remains of unfinished saves, unless a process holds `locks.writer_lock` or the file
            system has no locks. Use only if every process that saves there holds that lock: otherwise this deletes data
            that is being written.

    Raises:
        ValueError: See `steps_to_remove`.
        CheckpointNotFoundError: `protected` is None, and no checkpoint is intact.
    """
    found = steps_in(root)
    known = verified or VerifiedCache()
    removed: list[Path] = []
    not_removed: list[tuple[Path, str]] = []
    damaged: list[tuple[Path, str]] = []
    tracked = tracked_steps(root)

    def is_intact(step: int) -> bool:
        problems = known.problems(found[step], contents=contents)
        if problems:
            damaged.append((found[step], "; ".join(problems)))
        return not problems

    newest = next((step for step in found if is_intact(step)), None) if protected is None else protected
    if newest is None:
        listing = "; ".join(f"{path.name}: {reason}" for path, reason in damaged) or "none found"
        raise CheckpointNotFoundError(
            f"{root}: no intact checkpoint to keep, so none is deleted ({listing})."
        )
    for step in steps_to_remove(
        found, keep=keep, protected=newest, retain_interval=retain_interval, is_intact=is_intact
    ):
        path = found[step]
        if step in tracked:
            not_removed.append((path, "a tracker names it"))
            continue
        try:
            if _remove(path, dry_run=dry_run):
                removed.append(path)
            else:
                not_removed.append((path, "it is being read"))
        except OSError as error:
            not_removed.append((path, str(error)))
    if unfinished:
        _remove_unfinished(root, removed, not_removed, dry_run=dry_run)
    return PruneResult(removed=tuple(removed), not_removed=tuple(not_removed), damaged=tuple(damaged))


KEPT_REASONS = {
    "taken": "a process saves there",
    "unknown": "whether a process saves there is unknown: this file system has no locks",
}
"""Reasons why an unfinished save is kept."""


def _remove_unfinished(
    root: Path, removed: list[Path], not_removed: list[tuple[Path, str]], *, dry_run: bool
) -> None:
    """Delete staging folders while no process can start to save there."""
    with exclusive_lock(root) as lock:
        for path in staging_directories(root):
            if lock != "mine":
                not_removed.append((path, KEPT_REASONS[lock]))
                continue
            try:
                if not dry_run:
                    remove_folder(path)
                removed.append(path)
            except OSError as error:
                not_removed.append((path, str(error)))


def _remove(path: Path, *, dry_run: bool) -> bool:
    hidden = path.with_name(f".removing_{path.name}")
    with exclusive_lock(path) as lock:
        free = (
            lock != "taken"
        )  # without locks, readers are unknown, and old checkpoints are deleted all the same
        if free and not dry_run:
            path.rename(hidden)
    if free and not dry_run:
        remove_folder(hidden)
    return free
