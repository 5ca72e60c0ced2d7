"""Copies of the positions of data loaders in a separate folder (`dataset.dataloader_save`)."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from mb_checkpoint.errors import cause_of
from mb_checkpoint.formats.layout import iteration_directory
from mb_checkpoint.state.dataloader import POSITION_FILES
from mb_schema.save_result import SaveResult


class SaveEvent(Protocol):
    """Context of the event; `mb_loop.CallbackContext` matches."""

    @property
    def save(self) -> SaveResult | None:
        """The checkpoint."""
        ...


class PositionCopies:
    """Callback that copies the positions of each persistent checkpoint to `<folder>/iter_0000010`. Use it on one rank.

    An error of the disk is logged, and training continues.

    Args:
        folder: receives the copies.
        log: receives the warning of a copy that failed.
    """

    def __init__(self, folder: Path | str, *, log: Callable[[str], object]) -> None:
        self._folder = Path(folder)
        self._log = log

    def on_checkpoint_save(self, context: SaveEvent) -> None:
        """Copy the positions of a complete checkpoint."""
        save = context.save
        if save is None or save.non_persistent or save.path is None:
            return
        target = iteration_directory(self._folder, save.step)
        try:
            target.mkdir(parents=True, exist_ok=True)
            for file in save.path.glob(POSITION_FILES):
                shutil.copyfile(file, target / file.name)
        except OSError as error:
            self._log(f"warning: dataset.dataloader_save: no position of step {save.step}: {cause_of(error)}")


def position_callbacks(
    folder: Path | str | None, *, rank: int, log: Callable[[str], object]
) -> list[PositionCopies]:
    """Return the callback that copies positions to a folder, on rank 0; none if the folder is None."""
    return [] if folder is None or rank != 0 else [PositionCopies(folder, log=log)]
