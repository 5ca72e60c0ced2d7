"""Default checkpoint manager: the section and the state that is kept between saves."""

import logging
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch.distributed as dist

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
from mb_checkpoint.errors import CheckpointSaveError
from mb_checkpoint.inspect.verified_cache import VerifiedCache
from mb_checkpoint.load.load import load_checkpoint
from mb_checkpoint.load.sources import find_checkpoint
from mb_checkpoint.local.checkpoints import LocalStoreLike, local_root, open_local_store, save_local
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.rules import reject_violations
from mb_checkpoint.save.async_save import AsyncSave
from mb_checkpoint.save.background_writer import BackgroundWriter, new_writer
from mb_checkpoint.save.plan import BackgroundWriterLike, start_in_background, write_and_commit
from mb_checkpoint.save.pruning import Pruning
from mb_checkpoint.save.retention import PruneJob
from mb_checkpoint.save.save import (
    PlannerLike,
    destination,
    new_planner,
    plan_save,
    writing_group,
)
from mb_checkpoint.save.staged_size import estimate_staged_bytes
from mb_checkpoint.storage.mirror import load_with_storage, new_mirror

logger = logging.getLogger(__name__)


def _log_storage(line: str) -> None:
    failed = line.startswith("error: ")
    logger.log(logging.ERROR if failed else logging.INFO, "%s", line.removeprefix("error: "))


class DefaultCheckpointManager:
    """Checkpoints in the layout torch_dist, or that of Megatron-FSDP, below one folder.

    With `async_save`, a save copies the tensors of this rank to host memory and returns; a separate process writes
    them. Only one save is in flight: a second one waits for the first. Call `finalize_async_saves` after each step.

    Args:
        checkpoint_config: The section. Rejected if it has invalid or unsupported values.
        write_assets: Called on rank 0 with the folder of each checkpoint before it is committed, to add files such as
            those of the tokenizer.
        clock: Monotonic clock in seconds.
        log_outcomes: Log the result of each save on rank 0; False if the caller reports the returned results.

    Attributes:
        loaded: Result of the last `load`; None before.

    Raises:
        CheckpointConfigError: The section is invalid; the message has a line for each reason.
    """

    def __init__(
        self,
        checkpoint_config: CheckpointConfig,
        *,
        write_assets: Callable[[Path], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        log_outcomes: bool = True,
    ) -> None:
        reject_violations(checkpoint_config)
        self._config = checkpoint_config
        self._write_assets = write_assets
        self._clock = clock
        self._log_outcomes = log_outcomes
        self._validated = False
        self._planner: PlannerLike | None = None
        self._writer: BackgroundWriterLike | None = new_writer(checkpoint_config)
        self._pending: AsyncSave | None = None
        self._pruning = Pruning(logger.warning)
        self._events: CallbackManagerLike | None = None
        self._local: LocalStoreLike | None = None
        self._verified = VerifiedCache()
        self._mirror = new_mirror(checkpoint_config, log=_log_storage)
        self.loaded: LoadedCheckpoint | None = None

    @property
    def checkpoint_config(self) -> CheckpointConfig:
        """The section."""
        return self._config

    def save(
        self, ctx: CheckpointSaveContext, callback_manager: CallbackManagerLike | None = None
    ) -> SavedCheckpoint | ScheduledSave | FailedSave:
        """Save, or start a background save; `on_checkpoint_save` is fired when a checkpoint is complete.

        `on_checkpoint_failed` is fired for a FailedSave.

        Collective. Waits for a previous save that is still in flight. Megatron validates the coverage of the tensors by
        the ranks' pieces only at the first save, because later saves have the same pieces.

        Raises:
            CheckpointSaveError: The save failed, and `on_save_error` is "raise"; otherwise a FailedSave is returned.
            CheckpointLayoutError, NotImplementedError, ValueError: See `save_checkpoint`.
        """
        began = self._clock()
        self.finalize_async_saves(blocking=True)
        self._events = callback_manager
        self._choose_planner(CheckpointGroups.of(ctx.pg_collection))
        options: dict[str, Any] = {
            "write_assets": self._write_assets,
            "planner": self._planner,
            "validate": not self._validated,
            "clock": self._clock,
        }
        try:
            saved, pruning = self._begin(ctx, options)
        except CheckpointSaveError as error:
            failed = FailedSave(
                root=self._destination(ctx),
                step=int(ctx.state.train_state.state_dict()["step"]),
                message=str(error),
                seconds=self._clock() - began,
            )
            return self._failed(failed, cause=error)
        self._validated = True
        if isinstance(saved, SavedCheckpoint):
            self._report(saved)
        if pruning is not None:
            self._pruning.start(pruning, None)
        return saved

    def load(self, ctx: CheckpointLoadContext) -> tuple[int, float]:
        """Load; return step and FLOPs, (0, 0) unless a run was resumed. Collective; raises as `load_checkpoint`."""
        local = self._local_store(ctx.pg_collection)
        self.loaded = load_with_storage(self._mirror, lambda: load_checkpoint(ctx, self._config, local=local))
        if dist.get_rank() == 0:  # which deletes old checkpoints
            if self.loaded.path is not None and self._config.verify_integrity:
                self._verified.trust(self.loaded.path)
            for damaged in self.loaded.skipped:
                self._verified.distrust(damaged.path, damaged.reason)
        return self.loaded.step, self.loaded.floating_point_operations_so_far

    def finalize_async_saves(
        self, state: Any = None, blocking: bool = False, terminate: bool = False
    ) -> SavedCheckpoint | FailedSave | None:
        """Return the result of the background save, once, at the same call on all ranks; None if there is none yet.

        Call it on all ranks the same number of times. Not a collective: while a save is in flight, a call costs a round
        trip to the store of the process group, otherwise nothing. Rank 0 then deletes old checkpoints in the
        background. With `blocking`, waits for both; with `terminate`, also ends the background process.

        Raises:
            CheckpointSaveError: The save failed, and `on_save_error` is "raise".
        """
        pending = self._pending
        result = None if pending is None else pending.poll(blocking=blocking)
        try:
            if pending is not None and result is not None:
                self._pending = None
                if isinstance(result, FailedSave):
                    return self._failed(result, cause=None)
                self._report(result)
                self._pruning.start(pending.pruning, self._writer)
            self._pruning.poll(blocking=blocking or terminate)
            return result
        finally:
            if terminate and self._writer is not None and self._pending is None:
                self._writer.stop()
            if terminate and blocking and self._mirror is not None:
                self._mirror.finish()

    def close(self) -> None:
        """Kill the background process; a save in flight is lost. For a run that ends with an error."""
        self._pending = None
        self._pruning.cancel()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._mirror is not None:
            self._mirror.stop()

    def reserve_memory(self, model: Sequence[Any], optimizer: Any | None, groups: Any | None = None) -> None:
        """Allocate host memory for background saves ahead of the first one, in the background. Not a collective.

        Call it after the first step, when the optimizer has its state. Does nothing without `async_save`, and for the
        layout of Megatron-FSDP.

        Args:
            model: Model chunks of this rank.
            optimizer: Megatron's optimizer.
            groups: Process groups, as `CheckpointSaveContext.pg_collection`.
        """
        if not isinstance(self._writer, BackgroundWriter) or self._config.ckpt_format == "fsdp_dtensor":
            return
        shared = writing_group(self._config, CheckpointGroups.of(groups))
        sharing = 1 if shared is None else shared.size()
        saved = optimizer if self._config.save_optim else None
        self._writer.reserve(estimate_staged_bytes(model, saved, sharing=sharing))

    def has_checkpoint(self) -> bool:
        """Return whether `load` would find a checkpoint on the shared file system. Not collective.

        Local checkpoints are not checked, because only all ranks together can determine whether one is complete. A
        trainer calls `load` in any case and reads `loaded.source`.

        Raises:
            CheckpointNotFoundError, IncompleteCheckpointError: See `load`.
        """
        return find_checkpoint(self._config)[1] is not None

    def _choose_planner(self, groups: CheckpointGroups) -> None:
        """Select planner and writer at the first save: nvidia-resiliency-ext if configured and installed."""
        if self._planner is not None:
            return
        self._planner = new_planner(self._config, groups)
        dtensors = self._config.ckpt_format == "fsdp_dtensor"  # planned by torch, and written by this package
        if (
            isinstance(self._writer, BackgroundWriter)
            and self._config.async_strategy == "nvrx"
            and not dtensors
        ):
            module = import_module("mb_checkpoint.save.nvrx_async")  # imports Megatron Core, which is slow
            if module.is_available():
                shared = writing_group(self._config, groups)
                self._planner = self._writer = module.NvrxWriter(self._config, shared, self._writer)
            elif dist.get_rank() == 0:
                logger.info(
                    "checkpoint.async_strategy: nvidia-resiliency-ext 0.6 or newer is not installed. Using mcore."
                )

    def _begin(
        self, ctx: CheckpointSaveContext, options: dict[str, Any]
    ) -> tuple[SavedCheckpoint | ScheduledSave, PruneJob | None]:
        """Save, or start to; return also what is to be deleted after a save that is complete."""
        local = self._local_store(ctx.pg_collection) if ctx.non_persistent_ckpt else None
        if local is not None:
            return save_local(ctx, self._config, local, clock=self._clock), None
        plan = plan_save(ctx, self._config, **options, verified=self._verified)
        if self._writer is None:
            return write_and_commit(plan, clock=self._clock), plan.job.pruning
        self._pending, scheduled = start_in_background(plan, self._writer, clock=self._clock)
        return scheduled, None

    def _local_store(self, pg_collection: Any | None) -> LocalStoreLike | None:
        """Return the store of local checkpoints, opened on first use; None if they are not configured."""
        if self._local is None and self._config.non_persistent_ckpt_type == "local":
            self._local = open_local_store(self._config, CheckpointGroups.of(pg_collection).dp_cp)
        return self._local

    def _destination(self, ctx: CheckpointSaveContext) -> Path:
        is_local = ctx.non_persistent_ckpt and self._config.non_persistent_ckpt_type == "local"
        return local_root(self._config) if is_local else destination(ctx, self._config)

    def _report(self, saved: SavedCheckpoint) -> None:
        if self._log_outcomes and dist.get_rank() == 0:
            logger.info(saved.message)
        if self._mirror is not None:
            self._mirror.on_saved(saved.path)
        if self._events is not None:
            self._events.fire("on_checkpoint_save", saved)

    def _failed(self, failed: FailedSave, *, cause: Exception | None) -> FailedSave:
        if self._config.on_save_error == "raise":
            raise CheckpointSaveError(failed.message) from cause
        if self._log_outcomes and dist.get_rank() == 0:
            logger.error(failed.message)
        if self._events is not None:
            self._events.fire("on_checkpoint_failed", failed)
        return failed
