"""Where the training data stands, for loaders that keep it themselves: `dataset.dataloader_type=external`."""

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
"""Where the default manager puts positions, in the folder of a checkpoint."""


def say_without_position(config: ConfigContainer, iterator: Any, *, voice: Voice) -> None:
    """Warn that an external loader will begin anew in each job, or refuse where its position is asked for.

    Raises:
        DataloaderStateError: a folder for positions is named, and the loader has none.
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
    """Put the iterators of further chunks where that of the first one has been put."""
    first = positioned(iterator)
    if first is None or not isinstance(iterator, Sequence):
        return
    for other in iterator[1:]:
        iterable = positioned(other)
        if iterable is not None and iterable is not first:
            iterable.restore_state(first.save_state())


def keep_positions(checkpoint: Path, *, step: int, folder: str) -> None:
    """Put the positions that a checkpoint holds into a folder of their own, too. Call it on one rank."""
    place = iteration_directory(Path(folder), step)
    place.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.glob(FILES):
        shutil.copyfile(file, place / file.name)
