"""Default checkpoint manager: a section, and the saves and loads of a run of Megatron Core with it."""

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
from mb_checkpoint.load.load import load_checkpoint
from mb_checkpoint.load.sources import find_checkpoint
from mb_checkpoint.local.checkpoints import LocalStoreLike, local_root, open_local_store, save_local
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.rules import reject_violations
from mb_checkpoint.save.background_writer import BackgroundWriter
from mb_checkpoint.save.plan import SavePlan
from mb_checkpoint.save.planner import PlannerLike
from mb_checkpoint.save.save import destination, new_planner, plan_save, writing_group
from mb_checkpoint.save.saver import Saver
from mb_checkpoint.save.staged_size import estimate_staged_bytes
from mb_checkpoint.state.train_state import step_in

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
        self._saver = Saver(
            checkpoint_config,
            on_saved=self._report,
            on_failed=self._report_failure,
            warn=logger.warning,
            log_storage=_log_storage,
            clock=clock,
        )
        self._validated = False
        self._planner: PlannerLike | None = None
        self._events: CallbackManagerLike | None = None
        self._local: LocalStoreLike | None = None
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
        self.finalize_async_saves(blocking=True)  # before the receiver of its events is replaced
        self._events = callback_manager
        self._choose_planner(CheckpointGroups.of(ctx.pg_collection))
        step = step_in(ctx.state.train_state.state_dict())
        local = self._local_store(ctx.pg_collection) if ctx.non_persistent_ckpt else None
        if local is None:
            return self._saver.save(destination(ctx, self._config), step, lambda: self._plan(ctx))
        return self._saver.save(
            local_root(self._config), step, lambda: save_local(ctx, self._config, local, clock=self._clock)
        )

    def load(self, ctx: CheckpointLoadContext) -> tuple[int, float]:
        """Load; return step and FLOPs, (0, 0) unless a run was resumed. Collective; raises as `load_checkpoint`."""
        local = self._local_store(ctx.pg_collection)
        self.loaded = self._saver.load(lambda: load_checkpoint(ctx, self._config, local=local))
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
        return self._saver.poll(blocking=blocking, terminate=terminate)

    def close(self) -> None:
        """Kill the background process; a save in flight is lost. For a run that ends with an error."""
        self._saver.close()

    def reserve_memory(self, model: Sequence[Any], optimizer: Any | None, groups: Any | None = None) -> None:
        """Allocate host memory for background saves ahead of the first one, in the background. Not a collective.

        Call it after the first step, when the optimizer has its state. Does nothing without `async_save`, and for the
        layout of Megatron-FSDP.

        Args:
            model: Model chunks of this rank.
            optimizer: Megatron's optimizer.
            groups: Process groups, as `CheckpointSaveContext.pg_collection`.
        """
        writer = self._saver.writer
        if not isinstance(writer, BackgroundWriter) or self._config.ckpt_format == "fsdp_dtensor":
            return
        shared = writing_group(self._config, CheckpointGroups.of(groups))
        sharing = 1 if shared is None else shared.size()
        saved = optimizer if self._config.save_optim else None
        writer.reserve(estimate_staged_bytes(model, saved, sharing=sharing))

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
        writer = self._saver.writer
        dtensors = self._config.ckpt_format == "fsdp_dtensor"  # planned by torch, and written by this package
        if isinstance(writer, BackgroundWriter) and self._config.async_strategy == "nvrx" and not dtensors:
            module = import_module("mb_checkpoint.save.nvrx_async")  # imports Megatron Core, which is slow
            if module.is_available():
                shared = writing_group(self._config, groups)
                self._planner = self._saver.writer = module.NvrxWriter(self._config, shared, writer)
            elif dist.get_rank() == 0:
                logger.info(
                    "checkpoint.async_strategy: nvidia-resiliency-ext 0.6 or newer is not installed. Using mcore."
                )

    def _plan(self, ctx: CheckpointSaveContext) -> SavePlan:
        plan = plan_save(
            ctx,
            self._config,
            write_assets=self._write_assets,
            planner=self._planner,
            validate=not self._validated,
            verified=self._saver.verified,
        )
        self._validated = True
        return plan

    def _local_store(self, pg_collection: Any | None) -> LocalStoreLike | None:
        """Return the store of local checkpoints, opened on first use; None if they are not configured."""
        if self._local is None and self._config.non_persistent_ckpt_type == "local":
            self._local = open_local_store(self._config, CheckpointGroups.of(pg_collection).dp_cp)
        return self._local

    def _report(self, saved: SavedCheckpoint) -> None:
        if self._log_outcomes and dist.get_rank() == 0:
            logger.info(saved.message)
        if self._events is not None:
            self._events.fire("on_checkpoint_save", saved)

    def _report_failure(self, failed: FailedSave) -> None:
        if self._log_outcomes and dist.get_rank() == 0:
            logger.error(failed.message)
        if self._events is not None:
            self._events.fire("on_checkpoint_failed", failed)
