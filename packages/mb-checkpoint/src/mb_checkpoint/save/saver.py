"""Saves of one run: the one in flight, and what follows a complete one."""

from collections.abc import Callable
from pathlib import Path

from mb_checkpoint.collectives import own_rank
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import FailedSave, LoadedCheckpoint, SavedCheckpoint, ScheduledSave
from mb_checkpoint.errors import CheckpointSaveError
from mb_checkpoint.inspect.verified_cache import VerifiedCache
from mb_checkpoint.save.async_save import AsyncSave, BackgroundWriterLike
from mb_checkpoint.save.background_writer import new_writer
from mb_checkpoint.save.plan import SavePlan, start_in_background, write_and_commit
from mb_checkpoint.save.pruning import Pruning
from mb_checkpoint.storage.mirror import StorageMirror


class Saver:
    """Saves of one run, one at a time, in any layout.

    A planned save is written and committed at once, or, with `async_save`, is in flight until a poll finds its end. A
    complete one is reported, its copy to `checkpoint.storage` begins, and rank 0 deletes old checkpoints. A failed one
    is reported, or raised with `on_save_error="raise"`.

    Args:
        config: The section.
        on_saved: Called on each rank with a complete save.
        on_failed: Called on each rank with a failed save, unless it is raised.
        warn: Receives a line for each old checkpoint that rank 0 could not delete.
        log_storage: Receives a line for each checkpoint that is fetched from the storage or copied to it.
        clock: Monotonic clock in seconds.

    Attributes:
        writer: Background process that writes; None: saves are written at once.
        verified: Checkpoints that this run has found damaged, on rank 0, which deletes old ones.

    Raises:
        StorageError: See `open_storage`.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        on_saved: Callable[[SavedCheckpoint], object],
        on_failed: Callable[[FailedSave], object],
        warn: Callable[[str], object],
        log_storage: Callable[[str], object],
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._clock = clock
        self.writer: BackgroundWriterLike | None = new_writer(config)
        self.verified = VerifiedCache()
        self._pending: AsyncSave | None = None
        self._pruning = Pruning(warn)
        self._mirror = None if config.storage is None else StorageMirror(config, log=log_storage)

    def load(self, read: Callable[[], LoadedCheckpoint]) -> LoadedCheckpoint:
        """Return `read()`, or `StorageMirror.load(read)` with a storage; raises as they do. Collective."""
        loaded = read() if self._mirror is None else self._mirror.load(read)
        if own_rank() == 0:
            for damaged in loaded.skipped:
                self.verified.distrust(damaged.path, damaged.reason)
        return loaded

    def save(
        self, root: Path, step: int, plan: Callable[[], SavePlan | SavedCheckpoint]
    ) -> SavedCheckpoint | ScheduledSave | FailedSave:
        """Write and commit a save, or start to. Collective; waits for a previous save that is still in flight.

        Args:
            root: Folder that receives the checkpoint.
            step: Its step.
            plan: Returns the planned save, or the record of one that it has completed, which deletes no other.

        Raises:
            CheckpointSaveError: The save failed, and `on_save_error` is "raise".
        """
        self.poll(blocking=True)
        began = self._clock()
        try:
            planned = plan()
            if isinstance(planned, SavedCheckpoint):
                saved = planned
            elif self.writer is None:
                saved = write_and_commit(planned, began=began, clock=self._clock)
            else:
                self._pending = start_in_background(planned, self.writer, began=began, clock=self._clock)
                return ScheduledSave(
                    root=root,
                    step=step,
                    seconds=self._clock() - began,
                    staged_bytes=self.writer.staged_bytes,
                )
        except CheckpointSaveError as error:
            failed = FailedSave(root=root, step=step, message=str(error), seconds=self._clock() - began)
            return self._failed(failed, cause=error)
        self._saved(saved)
        if isinstance(planned, SavePlan):
            self._pruning.start(planned.job.pruning, None)
        return saved

    def poll(self, *, blocking: bool = False, terminate: bool = False) -> SavedCheckpoint | FailedSave | None:
        """Return the result of the save in flight, once, at the same call on all ranks; None if there is none yet.

        Not a collective: while a save is in flight, a call costs a round trip to the store of the process group,
        otherwise nothing.

        Args:
            blocking: Wait for the save, and for the deletion of old checkpoints.
            terminate: Also end the writer process, which the next save starts again, unless a save is in flight; with
                `blocking`, wait for the copy to the storage.

        Raises:
            CheckpointSaveError: The save failed, and `on_save_error` is "raise".
        """
        try:
            pending = self._pending
            result = None if pending is None else pending.poll(blocking=blocking)
            if pending is not None and result is not None:
                self._pending = None
                if isinstance(result, FailedSave):
                    return self._failed(result, cause=None)
                self._saved(result)
                self._pruning.start(pending.pruning, self.writer)
            self._pruning.poll(blocking=blocking or terminate)
            return result
        finally:
            if terminate and self.writer is not None and self._pending is None:
                self.writer.stop()
            if terminate and blocking and self._mirror is not None:
                self._mirror.finish()

    def close(self) -> None:
        """Kill the writer process and the copy to the storage; a save in flight is lost."""
        self._pending = None
        self._pruning.cancel()
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        if self._mirror is not None:
            self._mirror.stop()

    def _saved(self, saved: SavedCheckpoint) -> None:
        self._on_saved(saved)
        if self._mirror is not None:
            self._mirror.on_saved(saved.path)

    def _failed(self, failed: FailedSave, *, cause: Exception | None) -> FailedSave:
        if self._config.on_save_error == "raise":
            raise CheckpointSaveError(failed.message) from cause
        self._on_failed(failed)
        return failed
