"""The default checkpoint manager: the section and what must be remembered between two saves."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import (
    CallbackManagerLike,
    CheckpointLoadContext,
    CheckpointSaveContext,
    LoadedCheckpoint,
    SavedCheckpoint,
)
from mb_checkpoint.errors import CheckpointConfigError
from mb_checkpoint.load import find_checkpoint, load_checkpoint
from mb_checkpoint.rules import refusals
from mb_checkpoint.save import save_checkpoint

logger = logging.getLogger(__name__)


class DefaultCheckpointManager:
    """Checkpoints in the torch_dist layout below one folder.

    Args:
        checkpoint_config: The section. Refused as a whole when it asks for what cannot work or is not
            carried out by this version.
        write_assets: Called on rank 0 with the folder of each checkpoint before it is committed, to add files
            such as the tokenizer's.

    Attributes:
        loaded: What the last `load` did; None before.

    Raises:
        CheckpointConfigError: The section cannot be carried out; every reason is in the message.
    """

    def __init__(
        self, checkpoint_config: CheckpointConfig, *, write_assets: Callable[[Path], None] | None = None
    ) -> None:
        problems = refusals(checkpoint_config)
        if problems:
            raise CheckpointConfigError("\n".join(problems))
        self._config = checkpoint_config
        self._write_assets = write_assets
        self._validated = False
        self.loaded: LoadedCheckpoint | None = None

    def save(
        self, ctx: CheckpointSaveContext, callback_manager: CallbackManagerLike | None = None
    ) -> SavedCheckpoint:
        """Save, then fire `on_checkpoint_save` with the record. Collective; raises as `save_checkpoint`.

        Megatron checks the coverage of the pieces at the first save only: later ones have the same pieces.
        """
        saved = save_checkpoint(
            ctx, self._config, write_assets=self._write_assets, validate=not self._validated
        )
        self._validated = True
        if dist.get_rank() == 0:
            logger.info(saved.message)
            for path, reason in saved.pruned.kept_back:
                logger.warning("could not delete the old checkpoint %s: %s", path, reason)
        if callback_manager is not None:
            callback_manager.fire("on_checkpoint_save", saved)
        return saved

    def load(self, ctx: CheckpointLoadContext) -> tuple[int, float]:
        """Load; return step and FLOPs, (0, 0) unless a run was resumed. Collective; raises as `load_checkpoint`."""
        self.loaded = load_checkpoint(ctx, self._config)
        return self.loaded.step, self.loaded.floating_point_operations_so_far

    def finalize_async_saves(
        self, state: Any = None, blocking: bool = False, terminate: bool = False
    ) -> None:
        """Return at once: every save is finished when `save` returns."""

    def has_checkpoint(self) -> bool:
        """Say whether `load` would find something. Not collective.

        Raises:
            CheckpointNotFoundError, IncompleteCheckpointError: As `load`.
        """
        return find_checkpoint(self._config)[1] is not None
