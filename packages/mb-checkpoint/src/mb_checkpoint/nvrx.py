"""The door to nvidia-resiliency-ext: checkpoints on each node's own disk, with copies on other nodes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.tensor_aware_state_dict import MCoreTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (  # type: ignore[import-not-found,unused-ignore]  # not everywhere
    LocalCheckpointManager,
)
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import (  # type: ignore[import-not-found,unused-ignore]  # not everywhere
    CliqueReplicationStrategy,
)

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.local import LocalState


class LocalStore:
    """Temporary checkpoints in a folder of each node; fits `local.LocalStoreLike`. Made collectively.

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
        self._manager = LocalCheckpointManager(config.non_persistent_local_ckpt_dir, repl_strategy=copies)
        self._options = {
            "algo": config.non_persistent_local_ckpt_algo,
            "parallelization_group": group,
        }
        self._distribution: Any = None

    def save(self, state: dict[str, Any], step: int) -> Path:
        """Write the state of this rank and of those whose copies it holds; older steps go. Collective."""
        for left in self._manager.local_ckpt_dir.glob("*.dirty.pt"):
            left.unlink()  # a save that was interrupted; its name would be in the way
        aware, self._distribution = MCoreTensorAwareStateDict.from_state_dict(
            state, cached_metadata=self._distribution, **self._options
        )
        self._manager.save(aware, step, is_async=False)
        return Path(self._manager.local_ckpt_dir)

    def latest(self) -> int | None:
        """Return the newest step that all ranks together still have; None where there is none. Collective."""
        step = int(self._manager.find_latest())
        return None if step < 0 else step

    def load(self) -> LocalState:
        """Fetch the newest step, from another rank where this one lost its part. Collective, after `latest`."""
        aware, _ = self._manager.load()
        options = self._options

        def fill(asked: dict[str, Any]) -> dict[str, Any]:
            filled: dict[str, Any] = aware.to_state_dict(asked, **options)
            return filled

        objects = [
            each.unique_key
            for each in nested_values(aware.sharded_state_dict)
            if isinstance(each, ShardedObject)
        ]
        common: Mapping[str, Any] = aware.common_state_dict
        return LocalState(common=common, objects=frozenset(objects), fill=fill)
