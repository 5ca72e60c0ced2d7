"""Search for the newest checkpoint whose files match the manifest, in a single process."""

from collections.abc import Callable, Mapping
from pathlib import Path

from mb_checkpoint.errors import CheckpointSourceError, first_of
from mb_checkpoint.formats.layout import checkpoints_in
from mb_checkpoint.inspect.verified_cache import VerifiedCache
from mb_checkpoint.load.select import SelectedCheckpoint, select_checkpoint
from mb_checkpoint.locks import reader_lock


def first_intact(
    find: Callable[[Mapping[Path, str]], SelectedCheckpoint | None],
    *,
    contents: bool = True,
    progress: Callable[[int], object] = lambda _bytes: None,
) -> SelectedCheckpoint | None:
    """Return the first checkpoint of `find` whose files match the manifest; None if `find` returns None.

    Not collective: this process reads all files. The ranks of a run share that work in `load_checkpoint`.

    Args:
        find: Returns the checkpoint to read, given the folders that are known to be damaged, with the reason.
        contents: Verify contents; False accepts the first result of `find`.
        progress: Called with the number of bytes of each chunk that is read.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: Raised by `find`.
    """
    rejected: dict[Path, str] = {}
    while True:
        chosen = find(rejected)
        if chosen is None or not contents:
            return chosen
        with reader_lock(chosen.path):
            problems = VerifiedCache(progress=progress).problems(chosen.path)
        if not problems:
            return chosen
        rejected[chosen.path] = first_of(problems)


def newest_intact(
    path: Path | str, *, contents: bool = True, progress: Callable[[int], object] = lambda _bytes: None
) -> SelectedCheckpoint | None:
    """Return the newest intact checkpoint that a path refers to, as `select_checkpoint` does; None without any.

    Without `contents`, only sizes are compared with the manifest.

    Raises:
        CheckpointNotFoundError: There are checkpoints, but none is intact.
        IncompleteCheckpointError: The path is one checkpoint, and it is damaged.
    """
    return first_intact(
        lambda rejected: select_checkpoint(path, rejected=rejected), contents=contents, progress=progress
    )


def require_newest_intact(
    run: Path, *, purpose: str, contents: bool = True, log: Callable[[str], object] = lambda _line: None
) -> SelectedCheckpoint:
    """Return the newest intact checkpoint of a run folder, or of a folder of checkpoints.

    Args:
        run: The folder.
        purpose: What the caller does with it, such as "export", for the message if there is none.
        contents: Verify contents; False compares only sizes with the manifest, because another process verifies them.
        log: Receives a line for each damaged checkpoint that was skipped, and one for the checkpoint taken instead.

    Raises:
        CheckpointSourceError: There is no checkpoint.
        NoIntactCheckpointError, IncompleteCheckpointError: All are damaged.
    """
    checkpoints = checkpoints_in(run)
    selection = newest_intact(checkpoints, contents=contents) if checkpoints.is_dir() else None
    if selection is None:
        raise CheckpointSourceError(
            f"{run}: has no checkpoint to {purpose}. Name the folder of a run that saved one, such as runs/gpt_tiny."
        )
    for skipped in selection.skipped:
        log(f"skipped {skipped.path}: {skipped.reason}")
    if selection.skipped:
        log(f"taken instead: {selection.path}")
    return selection
