"""Access to Megatron Core's planning: the pieces that each rank writes, and the index of all pieces. Writes no data."""

from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.state_dict_saver import save_state_dict_async_plan
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

from mb_checkpoint.mcore import quiet
from mb_checkpoint.save.write_plan import WritePlan, split_by_size
from mb_checkpoint.save.writing import DataFile, Piece

BACKEND = CheckpointingConfig("torch_dist", 1)


class TorchDistSavePlanner:
    """Planner of the saves of one run.

    Args:
        dp_cp: Ranks that share the writing of replicated data; None: the first of them writes it.
        writers: Number of files of each rank, each with its own thread.
        constant: Plan once, because every save has the same tensors.
    """

    def __init__(self, *, dp_cp: Any | None, writers: int, constant: bool) -> None:
        strategy = _PlanningStrategy("torch_dist", 1, thread_count=writers, cached_metadata=constant)
        self._strategy: Any = (
            strategy
            if dp_cp is None
            else FullyParallelSaveStrategyWrapper(strategy, dp_cp, do_cache_distribution=constant)
        )

    def plan(
        self, state: dict[str, Any], directory: Path, *, metadata: dict[str, Any], validate: bool
    ) -> WritePlan:
        """Return the data that this rank writes of a sharded state dict. Collective over all ranks; writes no data.

        Args:
            state: The state dict; it is consumed.
            directory: The empty folder that will receive it.
            metadata: Layout of its content, which is stored with it.
            validate: Check that the ranks' pieces cover each tensor exactly once.
        """
        with quiet():
            plan: WritePlan = dist_checkpointing.save(
                state,
                str(directory),
                self._strategy,
                validate_access_integrity=validate,
                async_sharded_save=True,
                content_metadata=metadata,
            )
        return plan


class _PlanningStrategy(TorchDistSaveShardedStrategy):  # type: ignore[misc]  # Megatron has no types
    """Megatron's torch_dist strategy, up to the point where it would stage and write tensors."""

    cached_central_plan: Any
    cached_local_plan: Any
    validated_cache_reuse: Any

    def async_save(
        self, sharded_state_dict: Any, checkpoint_dir: Any, async_strategy: str = "mcore"
    ) -> WritePlan:
        by_key, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        writer = _PlanningWriter(checkpoint_dir, thread_count=self.thread_count)
        cached = self.cached_central_plan, self.cached_local_plan, self.validated_cache_reuse
        (_, index, _), central, local, reuse, _ = save_state_dict_async_plan(
            mcore_to_pyt_state_dict(by_key, False),
            writer,
            None,
            0,
            planner=MCoreSavePlanner(
                dedup_replicated_tensors=False, flatten_state_dict=False, flatten_sharded_tensors=False
            ),
            cached_ckpt_structure=cached if self.use_cached_ckpt_structure else None,
        )
        self.cached_central_plan, self.cached_local_plan, self.validated_cache_reuse = central, local, reuse
        if index is not None:
            self.cached_global_metadata = index
        elif self.use_cached_ckpt_structure:
            index = self.cached_global_metadata
        return WritePlan(files=writer.files, index=index)


class _PlanningWriter(FileSystemWriterAsync):  # type: ignore[misc]  # Megatron has no types
    """Writer that keeps the pieces of the plan instead of copying them."""

    files: tuple[DataFile, ...] = ()

    def prepare_write_data(self, plan: SavePlan, planner: SavePlanner) -> None:
        shares = [share for share in split_by_size(plan.items, self.thread_count) if share]
        self.files = tuple(
            DataFile(
                name=f"{plan.storage_data.prefix}{number}.distcp",
                pieces=tuple(
                    Piece(index=item.index, data=data if isinstance(data, torch.Tensor) else data.getvalue())
                    for item, data in ((item, planner.resolve_data(item)) for item in share)
                ),
            )
            for number, share in enumerate(shares)
        )


def write_format_marker(directory: Path) -> None:
    """Write the file by which Megatron Core recognizes the layout of a checkpoint."""
    save_config(BACKEND, str(directory))
