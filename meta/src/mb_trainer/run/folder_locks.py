"""Locks on the run folder and on the folders of checkpoints, and what is done if one is deleted. No torch."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from mb_checkpoint.trainer_api import exclusive_lock, shared_save_roots, writer_lock
from mb_loop import CallbackContext
from mb_trainer.run.run_folder import in_use_error
from mb_trainer.run.settle import Job


class FolderLocks:
    """Callback that holds the locks of a run, and makes a folder again that is deleted while the run trains.

    The lock is on the folder itself: another trainer could use a folder that is made again, so that it is locked again.

    Args:
        job: the run.
        stack: releases the locks.
        alert: receives a message for each folder that was deleted.
    """

    def __init__(self, job: Job, stack: ExitStack, *, alert: Callable[[str], object]) -> None:
        self._job = job
        self._stack = stack
        self._alert = alert
        self._every = job.config.logger.log_interval
        saves = not job.config.validation.skip_train
        self._roots = [*shared_save_roots(job.config.checkpoint)] if saves else []
        self._locked: dict[Path, tuple[int, int]] = {}

    @property
    def folders(self) -> list[Path]:
        """Folder of the run, and folders of checkpoints."""
        return [self._job.folder.path, *self._roots]

    def lock(self, folder: Path) -> None:
        """Create and lock a folder.

        Raises:
            mb_trainer.errors.RunFolderError: another trainer uses the run folder.
            mb_checkpoint.errors.CheckpointFolderError: another trainer saves to the same checkpoint folder.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if folder in self._roots:
            self._stack.enter_context(writer_lock(folder, run=str(self._job.folder.path.absolute())))
        else:
            self._stack.enter_context(exclusive_lock(folder, partial(in_use_error, self._job.folder)))
        self._locked[folder] = identity(folder)

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Check the folders at each log interval."""
        if context.state.train_state.step % self._every == 0:
            self.restore()

    def on_checkpoint_start(self, context: object) -> None:
        """Check the folders before each save."""
        self.restore()

    def on_train_end(self, context: object) -> None:
        """Check the folders at the end."""
        self.restore()

    def restore(self) -> None:
        """Make folders again that were deleted or moved, lock them, and report it."""
        for folder, locked in [*self._locked.items()]:
            with suppress(FileNotFoundError):
                if identity(folder) == locked:
                    continue
            if folder in self._roots:
                lost = "its checkpoints are lost, and a restart begins with the first one that is saved from now on"
            else:
                lost = "run_config.yaml, metrics.jsonl, events.jsonl and log.txt are written again"
            self._alert(f"warning: {folder}: was deleted or moved while the run trains; {lost}")
            self.lock(folder)
            if folder == self._job.folder.path:
                self._job.config.to_yaml(self._job.folder.run_config)


def identity(folder: Path) -> tuple[int, int]:
    """Return device and inode of a folder."""
    found = folder.stat()
    return found.st_dev, found.st_ino


@contextmanager
def locked_folders(job: Job, *, alert: Callable[[str], object]) -> Iterator[FolderLocks | None]:
    """Lock the folders of a run for the block; None on ranks other than 0, and for a folder that cannot be written.

    Folders that the block leaves empty are removed again: it fails before the run writes anything.

    Raises:
        mb_trainer.errors.RunFolderError: another trainer uses the run folder.
        mb_checkpoint.errors.CheckpointFolderError: another trainer saves to the same checkpoint folder.
    """
    if job.unwritable_reason is not None or job.world.rank != 0:
        yield None
        return
    created: list[Path] = []
    try:
        with ExitStack() as stack:
            locks = FolderLocks(job, stack, alert=alert)
            created = [folder for folder in locks.folders if not folder.exists()]
            for folder in locks.folders:
                locks.lock(folder)
            yield locks
    finally:
        for folder in reversed(created):
            with suppress(OSError):  # it holds a run, or is gone
                folder.rmdir()
