"""Positions of stateful data loaders (`dataset.dataloader_type=external`)."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mb_checkpoint import DataloaderStateError
from mb_checkpoint.dataloader import positioned
from mb_checkpoint.layout import iteration_directory
from mb_trainer.config import ConfigContainer
from mb_trainer.console import Voice

FILES = "train_dataloader_dprank*.pt"
"""Folder inside a checkpoint in which the default manager stores positions."""


def say_without_position(config: ConfigContainer, iterator: Any, *, voice: Voice) -> None:
    """Warn that an external loader restarts in each job, or reject the run if its position is required.

    Raises:
        DataloaderStateError: a folder for positions is configured, and the loader is stateless.
    """
    if iterator is None or positioned(iterator) is not None:
        return
    what = (
        f"dataset.dataloader_type=external: the iterator of {type(config.dataset).__name__} has no `iterable` with "
        "save_state and restore_state"
    )
    for name in ("dataloader_save", "dataloader_load"):
        folder = getattr(config.dataset, name)
        if folder is not None:
            raise DataloaderStateError(
                f"dataset.{name}={folder}: {what}, so there is no position. Give it them, or leave {name} unset."
            )
    if config.checkpoint.save is not None:
        voice.say(
            f"warning: {what}, so checkpoints hold no position of the data, and a resumed run reads it anew"
        )


def put_others_alike(iterator: Any) -> None:
    """Set the iterators of further chunks to the restored position of the first one."""
    first = positioned(iterator)
    if first is None or not isinstance(iterator, Sequence):
        return
    for other in iterator[1:]:
        iterable = positioned(other)
        if iterable is not None and iterable is not first:
            iterable.restore_state(first.save_state())


def keep_positions(checkpoint: Path, *, step: int, folder: str) -> None:
    """Copy the positions in a checkpoint to the folder that is configured for them. Call it on one rank."""
    place = iteration_directory(Path(folder), step)
    place.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.glob(FILES):
        shutil.copyfile(file, place / file.name)
