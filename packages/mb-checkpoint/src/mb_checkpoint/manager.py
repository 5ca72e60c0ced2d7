"""The default checkpoint manager: the section and what must be remembered between two saves."""

import logging
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from mb_checkpoint import mcore
from mb_checkpoint.async_save import AsyncSave
from mb_checkpoint.background_writer import BackgroundWriter
from mb_checkpoint.collectives import on_every_rank
from mb_checkpoint.commit_barrier import CommitBarrier
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import (
    CallbackManagerLike,
    CheckpointLoadContext,
    CheckpointSaveContext,
    FailedSave,
    LoadedCheckpoint,
    SavedCheckpoint,
    ScheduledSave,
)
from mb_checkpoint.errors import CheckpointConfigError, CheckpointSaveError
from mb_checkpoint.load import load_checkpoint
from mb_checkpoint.local import LocalStoreLike, open_local_store, save_local
from mb_checkpoint.rules import violations
from mb_checkpoint.save import (
    PlannerLike,
    cleaned_up,
    destination,
    new_planner,
    prepare,
    save_checkpoint,
    writing_group,
)
from mb_checkpoint.sources import find_checkpoint
from mb_checkpoint.verified_cache import VerifiedCache
from mb_checkpoint.worker import JobResult, WriterJob
from mb_checkpoint.writing import DataFile

logger = logging.getLogger(__name__)


class BackgroundWriterLike(Protocol):
    """What writes in the background; `background_writer.BackgroundWriter` fits."""

    @property
    def staged_bytes(self) -> int:
        """Host memory that is held for copies."""

    @property
    def pid(self) -> int | None:
        """Process id of the writer."""

    def write(self, folder: Path, rank: int, files: Sequence[DataFile]) -> None:
        """Copy the tensors and let them be written."""

    def submit(self, job: WriterJob) -> None:
        """Hand over the next job."""

    def result(self) -> JobResult | None:
        """Return what became of the last one, once."""

    def stop(self) -> None:
        """End the process; the next job starts another."""

    def close(self) -> None:
        """End the process for good."""


class DefaultCheckpointManager:
    """Checkpoints in the layout torch_dist, or that of Megatron-FSDP, below one folder.

    With `async_save` a save copies this rank's tensors to host memory and returns; a process of its own writes them.
    One save at a time: a second one waits for the first. `finalize_async_saves` is called after each step.

    Args:
        checkpoint_config: The section. Refused as a whole when it asks for what cannot work or is not
            carried out by this version.
        write_assets: Called on rank 0 with the folder of each checkpoint before it is committed, to add files
            such as the tokenizer's.
        clock: Seconds from any start.
        log_outcomes: Log on rank 0 what each save came to; False where the caller reports what is returned.

    Attributes:
        loaded: What the last `load` did; None before.

    Raises:
        CheckpointConfigError: The section cannot be carried out; every reason is in the message.
    """

    def __init__(
        self,
        checkpoint_config: CheckpointConfig,
        *,
        write_assets: Callable[[Path], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        log_outcomes: bool = True,
    ) -> None:
        problems = violations(checkpoint_config)
        if problems:
            raise CheckpointConfigError("\n".join(problems))
        self._config = checkpoint_config
        self._write_assets = write_assets
        self._clock = clock
        self._log_outcomes = log_outcomes
        self._validated = False
        self._planner: PlannerLike | None = None
        self._writer: BackgroundWriterLike | None = _writer(checkpoint_config)
        self._pending: AsyncSave | None = None
        self._events: CallbackManagerLike | None = None
        self._local: LocalStoreLike | None = None
        self._verified = VerifiedCache()
        self._reported: set[tuple[Path, str]] = set()
        self.loaded: LoadedCheckpoint | None = None

    def save(
        self, ctx: CheckpointSaveContext, callback_manager: CallbackManagerLike | None = None
    ) -> SavedCheckpoint | ScheduledSave | FailedSave:
        """Save, or begin to save in the background; `on_checkpoint_save` is fired when a checkpoint is whole.

        Collective. A save of before that is still under way is waited for. Megatron checks the coverage of the pieces
        at the first save only: later ones have the same pieces.

        Raises:
            CheckpointSaveError: It failed, and `on_save_error` is "raise"; otherwise that is returned.
            CheckpointLayoutError, NotImplementedError, ValueError: As `save_checkpoint`.
        """
        began = self._clock()
        self.finalize_async_saves(blocking=True)
        self._events = callback_manager
        self._choose_planner(mcore.CheckpointGroups.of(ctx.pg_collection))
        options: dict[str, Any] = {
            "write_assets": self._write_assets,
            "planner": self._planner,
            "validate": not self._validated,
            "clock": self._clock,
        }
        try:
            done = self._begin(ctx, options)
        except CheckpointSaveError as error:
            failed = FailedSave(
                root=destination(ctx, self._config),
                step=int(ctx.state.train_state.state_dict()["step"]),
                message=str(error),
                seconds=self._clock() - began,
            )
            return self._failed(failed, cause=error)
        self._validated = True
        if isinstance(done, SavedCheckpoint):
            self._report(done)
        return done

    def load(self, ctx: CheckpointLoadContext) -> tuple[int, float]:
        """Load; return step and FLOPs, (0, 0) unless a run was resumed. Collective; raises as `load_checkpoint`."""
        self.loaded = load_checkpoint(ctx, self._config, local=self._local_store(ctx.pg_collection))
        if self.loaded.path is not None and self._config.verify_integrity:
            self._verified.trust(self.loaded.path)
        for damaged in self.loaded.skipped:
            self._verified.distrust(damaged.path, damaged.reason)
        return self.loaded.step, self.loaded.floating_point_operations_so_far

    def finalize_async_saves(
        self, state: Any = None, blocking: bool = False, terminate: bool = False
    ) -> SavedCheckpoint | FailedSave | None:
        """Return what became of the background save, once, on all ranks at the same call; None: under way, or none.

        Call it on all ranks alike. No collective: while a save is under way it costs a round trip to the store of the
        process group, otherwise nothing. Blocking waits for the save; terminate ends the background process, too.

        Raises:
            CheckpointSaveError: The save failed, and `on_save_error` is "raise".
        """
        done = self._pending.poll(blocking=blocking) if self._pending is not None else None
        try:
            if done is not None:
                self._pending = None
            if isinstance(done, FailedSave):
                return self._failed(done, cause=None)
            if done is not None:
                self._report(done)
            return done
        finally:
            if terminate and self._writer is not None and self._pending is None:
                self._writer.stop()

    def close(self) -> None:
        """End the background process at once; a save under way is lost. For a run that is ending with an error."""
        self._pending = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def has_checkpoint(self) -> bool:
        """Say whether `load` would find something on the shared file system. Not collective.

        Local checkpoints are not looked for, because only all ranks together can tell whether one is whole: a trainer
        calls `load` in any case and reads `loaded.source`.

        Raises:
            CheckpointNotFoundError, IncompleteCheckpointError: As `load`.
        """
        return find_checkpoint(self._config)[1] is not None

    def _choose_planner(self, groups: mcore.CheckpointGroups) -> None:
        """Choose who plans and writes, at the first save: nvidia-resiliency-ext where requested and there."""
        if self._planner is not None:
            return
        self._planner = new_planner(self._config, groups)
        dtensors = self._config.ckpt_format == "fsdp_dtensor"  # planned by torch, and written by this package
        if (
            isinstance(self._writer, BackgroundWriter)
            and self._config.async_strategy == "nvrx"
            and not dtensors
        ):
            module = import_module("mb_checkpoint.nvrx_async")  # Megatron Core must not be imported for less
            if module.is_available():
                shared = writing_group(self._config, groups)
                self._planner = self._writer = module.NvrxWriter(self._config, shared, self._writer)
            elif dist.get_rank() == 0:
                logger.info(
                    "checkpoint.async_strategy: nvidia-resiliency-ext 0.6 or newer is not installed; mcore it is"
                )

    def _begin(self, ctx: CheckpointSaveContext, options: dict[str, Any]) -> SavedCheckpoint | ScheduledSave:
        local = self._local_store(ctx.pg_collection) if ctx.non_persistent_ckpt else None
        if local is not None:
            return save_local(ctx, self._config, local, clock=self._clock)
        if self._writer is not None:
            return self._schedule(ctx, self._writer, options)
        return save_checkpoint(ctx, self._config, **options, verified=self._verified)

    def _local_store(self, pg_collection: Any | None) -> LocalStoreLike | None:
        """Return where local checkpoints are, opened at the first need; None where they are not requested."""
        if self._local is None and self._config.non_persistent_ckpt_type == "local":
            self._local = open_local_store(self._config, mcore.CheckpointGroups.of(pg_collection).dp_cp)
        return self._local

    def _schedule(
        self, ctx: CheckpointSaveContext, writer: BackgroundWriterLike, options: dict[str, Any]
    ) -> ScheduledSave:
        prepared = prepare(ctx, self._config, **options)
        save = prepared.save
        with cleaned_up(save.root, save.step, save.staging):
            on_every_rank(lambda: writer.write(save.staging, dist.get_rank(), prepared.files))
        world = dist.get_world_size()
        rounds = CommitBarrier(
            dist.distributed_c10d._get_default_store() if world > 1 else None,
            rank=dist.get_rank(),
            world_size=world,
            name=save.staging.name,
        )
        self._pending = AsyncSave(save, writer=writer, rounds=rounds, clock=self._clock)
        return ScheduledSave(
            root=save.root,
            step=save.step,
            seconds=self._clock() - save.began,
            staged_bytes=writer.staged_bytes,
        )

    def _report(self, saved: SavedCheckpoint) -> None:
        if dist.get_rank() == 0:
            if self._log_outcomes:
                logger.info(saved.message)
            for path, reason in saved.pruned.not_removed:
                logger.warning("could not delete the old checkpoint %s: %s", path, reason)
            for path, reason in saved.pruned.damaged:
                if (path, reason) not in self._reported:  # each save finds it again
                    logger.warning("does not count among the checkpoints to keep: %s: %s", path, reason)
                self._reported.add((path, reason))
        if self._events is not None:
            self._events.fire("on_checkpoint_save", saved)

    def _failed(self, failed: FailedSave, *, cause: Exception | None) -> FailedSave:
        if self._config.on_save_error == "raise":
            raise CheckpointSaveError(failed.message) from cause
        if self._log_outcomes and dist.get_rank() == 0:
            logger.error(failed.message)
        if self._events is not None:
            self._events.fire("on_checkpoint_save_failed", failed)
        return failed


def _writer(config: CheckpointConfig) -> BackgroundWriter | None:
    if not config.async_save:
        return None
    return BackgroundWriter(
        start_method=config.async_write_results_mp_mode,
        nice=config.async_ckpt_cpu_priority,
        io_class=config.async_ckpt_io_priority,
        hang_seconds=config.async_hang_seconds,
    )
