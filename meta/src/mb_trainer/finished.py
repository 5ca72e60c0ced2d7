"""Whether a run has all its steps: the checkpoint that a load would take, its content compared. Imports torch."""

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
    """Return the sound checkpoint that a run of so many steps would go on from, if it has them all; else None.

    One process alone; it reads the checkpoint, unless `checkpoint.verify_integrity` is false.

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
    """Return what `last_checkpoint` does, on every rank alike; they share the reading. Collective over the world.

    `seems_there` says whether it is worth looking, on rank 0: each rank has seen the folder at a moment of its own.
    """
    if not on_rank_zero(lambda: seems_there):
        return None
    find = at_the_end(checkpoint, steps=steps)

    def look(rejected: Mapping[Path, str]) -> tuple[Literal["resumed"], SelectedCheckpoint | None]:
        return "resumed", find(rejected)

    with intact_checkpoint(look, checkpoint) as (_, chosen):
        return chosen


def resumed_step(checkpoint: CheckpointConfig) -> int:
    """Return the step that a load would go on from, its content not looked at; 0 where it would begin anew.

    Raises:
        mb_checkpoint.CheckpointNotFoundError, mb_checkpoint.IncompleteCheckpointError: a load would raise it.
    """
    source, chosen = find_checkpoint(checkpoint)
    return chosen.step or 0 if source == "resumed" and chosen is not None else 0


def at_the_end(checkpoint: CheckpointConfig, *, steps: int) -> Find:
    """Return what names the checkpoint that would be resumed from, if it has so many steps."""

    def find(rejected: Mapping[Path, str]) -> SelectedCheckpoint | None:
        source, chosen = find_checkpoint(checkpoint, rejected)
        if source != "resumed" or chosen is None or chosen.step is None or chosen.step < steps:
            return None
        return chosen

    return find
