"""Completion of a run: whether the verified checkpoint that a load would take has all steps. Imports torch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from mb_checkpoint import SelectedCheckpoint
from mb_checkpoint.collectives import on_rank_zero
from mb_checkpoint.integrity import first_intact
from mb_checkpoint.sources import find_checkpoint, intact_checkpoint
from mb_trainer.config import CheckpointConfig
from mb_trainer.console import Voice

Find = Callable[[Mapping[Path, str]], SelectedCheckpoint | None]


def last_checkpoint(checkpoint: CheckpointConfig, *, steps: int, voice: Voice) -> SelectedCheckpoint | None:
    """Return the intact checkpoint that a run of `steps` steps would resume from, if it has all steps; else None.

    For a single process. Reads the content of the checkpoint unless `checkpoint.verify_integrity` is false.

    Raises:
        mb_checkpoint.CheckpointNotFoundError, mb_checkpoint.IncompleteCheckpointError: a load would raise it.
    """
    find = at_the_end(checkpoint, steps=steps)
    first = find({})
    if first is None:
        return None
    total, read = sum(file.stat().st_size for file in first.path.rglob("*") if file.is_file()), 0
    with voice.progress("comparing the last checkpoint", total) as bar:

        def note(count: int) -> None:
            nonlocal read
            read += count
            bar.update(read)

        return first_intact(find, contents=checkpoint.verify_integrity, progress=note)


def last_checkpoint_of_all(
    checkpoint: CheckpointConfig, *, steps: int, seems_there: bool = True
) -> SelectedCheckpoint | None:
    """Return the result of `last_checkpoint` on every rank; the ranks share the reading. Collective over the world.

    `seems_there` decides on rank 0 whether the content is read at all: the ranks list the folder at different times
    and may see different names.
    """
    if not on_rank_zero(lambda: seems_there):
        return None
    find = at_the_end(checkpoint, steps=steps)

    def look(rejected: Mapping[Path, str]) -> tuple[Literal["resumed"], SelectedCheckpoint | None]:
        return "resumed", find(rejected)

    with intact_checkpoint(look, checkpoint) as (_, chosen):
        return chosen


def resumed_step(checkpoint: CheckpointConfig) -> int:
    """Return the step that a load would resume from, without reading its content; 0 for a fresh start.

    Raises:
        mb_checkpoint.CheckpointNotFoundError, mb_checkpoint.IncompleteCheckpointError: a load would raise it.
    """
    source, chosen = find_checkpoint(checkpoint)
    return chosen.step or 0 if source == "resumed" and chosen is not None else 0


def at_the_end(checkpoint: CheckpointConfig, *, steps: int) -> Find:
    """Return a function that finds the checkpoint to resume from, if it has `steps` steps."""

    def find(rejected: Mapping[Path, str]) -> SelectedCheckpoint | None:
        source, chosen = find_checkpoint(checkpoint, rejected)
        if source != "resumed" or chosen is None or chosen.step is None or chosen.step < steps:
            return None
        return chosen

    return find
