"""Retention of checkpoints: selection and deletion of old ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mb_checkpoint.errors import NoIntactCheckpointError, cause_of
from mb_checkpoint.formats.layout import leftovers, removing_directory, steps_in
from mb_checkpoint.formats.trackers import tracked_steps
from mb_checkpoint.inspect.best import ranked_checkpoints
from mb_checkpoint.inspect.verified_cache import VerifiedCache
from mb_checkpoint.locks import try_exclusive_lock
from mb_checkpoint.save.commit import remove_folder, remove_leftover
from mb_checkpoint.save.kept_steps import steps_to_remove


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """Result of pruning."""

    removed: tuple[Path, ...] = ()
    """Folders that were deleted."""
    not_removed: tuple[tuple[Path, str], ...] = ()
    """Folders that should have been deleted, with the reason why they were not."""
    damaged: tuple[tuple[Path, str], ...] = ()
    """Folders that did not count among those to keep, because they are damaged, with the reason."""
    kept_best: Path | None = None
    """Folder that was kept only because it is the best by `checkpoint.best_metric`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneJob:
    """Deletion of old checkpoints that a save leaves, for this process or the writer process."""

    root: Path
    """Folder with the `iter_*` folders."""
    step: int
    """Step that was saved."""
    keep: int
    """Number of checkpoints to keep; -1 keeps all."""
    retain_interval: int | None
    """Multiples of this step are never deleted."""
    verified: VerifiedCache = field(default_factory=VerifiedCache)
    """Checkpoints that this run has found damaged. Of the others only sizes are compared before old ones are deleted:
    reading them would take longer than the save."""

    def run(self, *, progress: Callable[[int], object] = lambda _files: None) -> PruneResult:
        """Delete them. Arguments and errors as `prune`."""
        return prune(
            self.root,
            keep=self.keep,
            protected=self.step,
            retain_interval=self.retain_interval,
            verified=self.verified,
            contents=False,
            progress=progress,
        )


def prune(  # noqa: PLR0913 - what is deleted, each by name
    root: Path,
    *,
    keep: int,
    protected: int | None = None,
    retain_interval: int | None = None,
    dry_run: bool = False,
    verified: VerifiedCache | None = None,
    contents: bool = True,
    unfinished: bool = False,
    progress: Callable[[int], object] = lambda _files: None,
) -> PruneResult:
    """Delete the step folders beyond the `keep` newest intact ones; a folder that cannot be deleted is reported.

    Call it on one rank, after the trackers name the protected step. Checkpoints that a tracker names or a reader holds
    are kept, and so is the best intact one by `checkpoint.best_metric`. Each folder is first renamed to a hidden name,
    so that no reader finds a partially deleted one. If there is a candidate for deletion, the newest checkpoints are
    verified by their hashes first, each once in the lifetime of `verified`, until `keep` of them are found intact; only
    older ones are deleted.

    Args:
        root: Folder with the `iter_*` folders.
        keep: Number of checkpoints to keep; -1 keeps all.
        protected: Step that was just saved, or that is in use; None: the newest intact one.
        retain_interval: Multiples of it are never deleted.
        dry_run: Delete nothing; `removed` lists the folders that would be deleted.
        verified: Cache of verified checkpoints; None starts with an empty one.
        contents: Verify contents; False compares only sizes.
        unfinished: Also delete the remains of interrupted saves and deletions, unless a process holds
            `locks.writer_lock` or the file system has no locks. Use only if every process that saves there holds that
            lock: otherwise this deletes data that is being written.
        progress: Called after each file that is deleted, in any thread.

    Raises:
        ValueError: See `steps_to_remove`.
        CheckpointNotFoundError: `protected` is None, and no checkpoint is intact (NoIntactCheckpointError).
    """
    folders = steps_in(root)
    pruning = _Pruning(verified or VerifiedCache(), contents=contents, dry_run=dry_run, progress=progress)
    newest = pruning.newest_intact(root, folders) if protected is None else protected
    tracked = tracked_steps(root)
    old = steps_to_remove(
        folders,
        keep=keep,
        protected=newest,
        retain_interval=retain_interval,
        is_intact=lambda step: pruning.is_intact(folders[step]),
    )
    best = pruning.best(root, newest=newest) if old else None
    for step in old:
        if folders[step] == best:
            pruning.kept_best = best
        else:
            pruning.remove(folders[step], is_tracked=step in tracked)
    if unfinished:
        pruning.remove_unfinished(root)
    return pruning.result()


TRACKED = "a tracker names it"
"""Reason why an old checkpoint is kept."""
KEPT_REASONS = {
    "taken": "a process saves there",
    "unknown": "whether a process saves there is unknown: this file system has no locks",
}
"""Reasons why an unfinished save is kept."""


class _Pruning:
    """Deletions of one call of `prune`, and their results."""

    def __init__(
        self, verified: VerifiedCache, *, contents: bool, dry_run: bool, progress: Callable[[int], object]
    ) -> None:
        self._verified = verified
        self._contents = contents
        self._dry_run = dry_run
        self._progress = progress
        self.removed: list[Path] = []
        self.not_removed: list[tuple[Path, str]] = []
        self.damaged: list[tuple[Path, str]] = []
        self.kept_best: Path | None = None

    def is_intact(self, path: Path) -> bool:
        """Return whether a checkpoint is intact; a damaged one is recorded."""
        problems = self._verified.problems(path, contents=self._contents)
        if problems:
            self.damaged.append((path, "; ".join(problems)))
        return not problems

    def newest_intact(self, root: Path, folders: Mapping[int, Path]) -> int:
        """Return the newest intact step, the first of `folders`.

        Raises:
            NoIntactCheckpointError: There is none.
        """
        newest = next((step for step, path in folders.items() if self.is_intact(path)), None)
        if newest is None:
            listing = "; ".join(f"{path.name}: {reason}" for path, reason in self.damaged) or "none found"
            raise NoIntactCheckpointError(
                f"{root}: no intact checkpoint to keep, so none is deleted ({listing})."
            )
        return newest

    def best(self, root: Path, *, newest: int) -> Path | None:
        """Return the best intact checkpoint up to the newest one; None if none has a metric."""
        ranked = (checkpoint.path for checkpoint in ranked_checkpoints(root, up_to=newest))
        return next((path for path in ranked if self.is_intact(path)), None)

    def remove(self, path: Path, *, is_tracked: bool) -> None:
        """Delete a checkpoint unless a tracker names it or a process reads it, and record the result."""
        try:
            if is_tracked:
                self.not_removed.append((path, TRACKED))
            elif _remove(path, dry_run=self._dry_run, progress=self._progress):
                self.removed.append(path)
            else:
                self.not_removed.append((path, "it is being read"))
        except OSError as error:
            self.not_removed.append((path, cause_of(error)))

    def remove_unfinished(self, root: Path) -> None:
        """Delete what dead processes have left while no process can start to save there."""
        with try_exclusive_lock(root) as lock:
            for path in leftovers(root):
                if lock != "acquired":
                    self.not_removed.append((path, KEPT_REASONS[lock]))
                    continue
                try:
                    if not self._dry_run:
                        remove_leftover(path, progress=self._progress)
                    self.removed.append(path)
                except OSError as error:
                    self.not_removed.append((path, cause_of(error)))

    def result(self) -> PruneResult:
        """Return the results recorded so far."""
        return PruneResult(
            removed=tuple(self.removed),
            not_removed=tuple(self.not_removed),
            damaged=tuple(self.damaged),
            kept_best=self.kept_best,
        )


def _remove(path: Path, *, dry_run: bool, progress: Callable[[int], object]) -> bool:
    hidden = removing_directory(path)
    with try_exclusive_lock(path) as lock:
        # Without locks, readers are unknown, and old checkpoints are deleted all the same.
        free = lock != "taken"
        if free and not dry_run:
            path.rename(hidden)
    if free and not dry_run:
        remove_folder(hidden, progress=progress)
    return free
