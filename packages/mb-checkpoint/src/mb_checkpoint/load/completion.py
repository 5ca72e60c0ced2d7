"""Verification that a run is complete: the checkpoint that a load would select has all steps, and is intact.

A non-persistent one does not count: the run that resumes from it has its last step to save.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from mb_checkpoint.collectives import on_rank_zero
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.formats.layout import is_non_persistent
from mb_checkpoint.inspect.integrity import first_intact
from mb_checkpoint.load.select import SelectedCheckpoint
from mb_checkpoint.load.sources import find_checkpoint, load_intact


def verify_last_checkpoint(
    section: CheckpointConfig,
    *,
    train_iters: int,
    progress: Callable[[int, int], object] = lambda _done, _total: None,
) -> SelectedCheckpoint | None:
    """Return the intact checkpoint that a load would select if it is persistent and has all steps, else None.

    For a single process. Reads the contents of the checkpoint unless `verify_integrity` is false.

    Args:
        section: the checkpoint section.
        train_iters: number of steps of the complete run.
        progress: called with the bytes that are read so far, and with the size of the newest checkpoint.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: a load would raise it.
    """
    find = _find_complete(section, train_iters)
    newest = find({})
    if newest is None:
        return None
    total = sum(file.stat().st_size for file in newest.path.rglob("*") if file.is_file())
    done_bytes = 0

    def add(count: int) -> None:
        nonlocal done_bytes
        done_bytes += count
        progress(done_bytes, total)

    return first_intact(find, contents=section.verify_integrity, progress=add)


def verify_last_checkpoint_on_all_ranks(
    section: CheckpointConfig, *, train_iters: int, seems_complete: bool = True
) -> SelectedCheckpoint | None:
    """Return the result of `verify_last_checkpoint` on every rank. Collective over the world; ranks share the reading.

    Args:
        section: the checkpoint section.
        train_iters: number of steps of the complete run.
        seems_complete: whether the contents are read at all. The value of rank 0 decides: the ranks list the folder at
            different times, and may see different names.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: a load would raise it.
    """
    if not on_rank_zero(lambda: seems_complete):
        return None
    find = _find_complete(section, train_iters)

    def find_source(rejected: Mapping[Path, str]) -> tuple[Literal["resumed"], SelectedCheckpoint | None]:
        return "resumed", find(rejected)

    return load_intact(
        find_source, section, lambda _source, chosen, _verification: chosen, while_reading=False
    )


def resumed_step(section: CheckpointConfig) -> int:
    """Return the step that a load would resume from, without reading its contents; 0 unless it resumes.

    Not collective.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: a load would raise it.
    """
    source, chosen = find_checkpoint(section)
    return chosen.step or 0 if source == "resumed" and chosen is not None else 0


def _find_complete(
    section: CheckpointConfig, train_iters: int
) -> Callable[[Mapping[Path, str]], SelectedCheckpoint | None]:
    """Return a function that finds the checkpoint to resume from, if it is persistent and has all steps."""

    def find(rejected: Mapping[Path, str]) -> SelectedCheckpoint | None:
        source, chosen = find_checkpoint(section, rejected)
        if source != "resumed" or chosen is None or chosen.step is None or chosen.step < train_iters:
            return None
        return None if is_non_persistent(section, chosen.path) else chosen

    return find
