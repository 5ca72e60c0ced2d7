"""Access to nvidia-resiliency-ext: checkpoints on the disk of each node, with copies on other nodes.

The module may be imported at any time, also after a model was built and trained: the import does not affect a run.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.tensor_aware_state_dict import MCoreTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.base_manager import (  # type: ignore[import-not-found,unused-ignore]  # not everywhere
    CheckpointingException,
)
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (  # type: ignore[import-not-found,unused-ignore]  # not everywhere
    LocalCheckpointManager,
)
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import (  # type: ignore[import-not-found,unused-ignore]  # not everywhere
    CliqueReplicationStrategy,
)

from mb_checkpoint.collectives import any_rank, read_on_all_ranks
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.formats.trust import is_trusted
from mb_checkpoint.formats.unpickling import reject_code, weights_only
from mb_checkpoint.local.state import LocalState
from mb_checkpoint.megatron.pieces import pieces_without_data
from mb_checkpoint.save.device_sync import wait_for_current_device

_CLASSES = [MCoreTensorAwareStateDict, ShardedObject, ShardedTensor]
"""Classes that a local checkpoint holds in addition to tensors and builtins."""

logger = logging.getLogger(__name__)


class _Manager(LocalCheckpointManager):  # type: ignore[misc,unused-ignore]  # without types, or not there
    """Manager of the library whose collective save completes even if this rank fails to write.

    The library then detects the missing part, removes the others, and raises on all ranks.
    """

    failure: Exception | None = None
    synchronize: Callable[[], object] | None = None
    """See `wait_for_current_device`."""

    def forget(self) -> None:
        """Reset the failure of the previous save."""
        self.failure = None

    def check(self) -> None:
        """Reject local files that name code.

        Raises:
            UnsafeCheckpointError: A file names code.
        """
        if is_trusted(self.local_ckpt_dir):
            return
        with torch.serialization.safe_globals(_CLASSES):
            for file in sorted(self.local_ckpt_dir.glob("*.pt")):
                reject_code(file)

    def _load(self, ckpt_id: Any) -> Any:
        with weights_only(Path(self.local_ckpt_dir), classes=_CLASSES):
            return super()._load(ckpt_id)

    def _save(self, state_dict: Any, ckpt_id: Any) -> None:
        # the library copies to the host with non_blocking=True, and waits for the copies in asynchronous saves only
        wait_for_current_device(synchronize=self.synchronize)
        try:
            super()._save(state_dict, ckpt_id)
        except Exception as error:  # noqa: BLE001  # not swallowed: `LocalStore.save` raises or logs it
            self.failure = error


class LocalStore:
    """Non-persistent checkpoints in a folder of each node; matches `local.LocalStoreLike`. Construction is collective.

    Args:
        config: `non_persistent_local_ckpt_dir`, `non_persistent_local_ckpt_algo` and the replication fields.
        group: Ranks that share the state, data-parallel with context-parallel.
    """

    def __init__(self, config: CheckpointConfig, group: Any) -> None:
        copies = None
        if config.replication:
            copies = CliqueReplicationStrategy.from_replication_params(
                config.replication_jump or torch.cuda.device_count(), config.replication_factor
            )
        self._manager = _Manager(config.non_persistent_local_ckpt_dir, repl_strategy=copies)
        self._options = {
            "algo": config.non_persistent_local_ckpt_algo,
            "parallelization_group": group,
        }
        self._pieces: list[Any] | None = None
        self._distribution: Any = None

    def save(self, state: dict[str, Any], step: int) -> Path:
        """Write the state of this rank and the copies that it holds; delete older steps. Collective.

        If this rank could not write, and copies on other nodes suffice, a warning is logged.

        Raises:
            OSError: This rank could not write.
            CheckpointingException: Another rank could not.
        """
        self._manager.forget()
        for unfinished in self._manager.local_ckpt_dir.glob("*.dirty.pt"):
            unfinished.unlink()  # of an interrupted save; the library rejects an existing name
        pieces = pieces_without_data(state)
        if any_rank(pieces != self._pieces):  # the distribution has a rank for each tensor of an earlier save
            self._pieces, self._distribution = pieces, None
        aware, self._distribution = MCoreTensorAwareStateDict.from_state_dict(
            state, cached_metadata=self._distribution, **self._options
        )
        try:
            self._manager.save(aware, step, is_async=False)
        except CheckpointingException as error:
            raise (self._manager.failure or error) from error
        if self._manager.failure is not None:
            logger.warning(
                "local checkpoint of step %d: this rank could not write (%s); it remains readable while the ranks "
                "that hold copies are alive",
                step,
                self._manager.failure,
            )
        return Path(self._manager.local_ckpt_dir)

    def latest(self) -> int | None:
        """Return the newest step that all ranks together still have; None if there is none. Collective."""
        step = int(self._manager.find_latest())
        return None if step < 0 else step

    def load(self) -> LocalState:
        """Load the newest step, from another rank if this one lost its part. Collective; call after `latest`.

        Raises:
            CheckpointReadError: The files of a rank name code that reading them would execute.
        """
        read_on_all_ranks(Path(self._manager.local_ckpt_dir), self._manager.check)
        aware, _ = self._manager.load()
        options = self._options

        def fill(requested: dict[str, Any]) -> dict[str, Any]:
            filled: dict[str, Any] = aware.to_state_dict(requested, **options)
            return filled

        entries = list(nested_values(aware.sharded_state_dict))
        objects = frozenset(entry.unique_key for entry in entries if isinstance(entry, ShardedObject))
        tensors = frozenset(entry.key for entry in entries if isinstance(entry, ShardedTensor))
        common: Mapping[str, Any] = aware.common_state_dict
        return LocalState(common=common, objects=objects, fill=fill, tensors=tensors)
