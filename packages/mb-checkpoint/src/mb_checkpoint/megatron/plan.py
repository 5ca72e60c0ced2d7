"""Access to Megatron Core's planning: the pieces that each rank writes, and the index of all pieces. Writes no data."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.exchange_utils import determine_main_replica_uniform_distribution
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    distribute_main_replicas_with_precomputed_distribution,
)
from megatron.core.dist_checkpointing.strategies.state_dict_saver import save_state_dict_async_plan
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from megatron.core.dist_checkpointing.validation import validate_sharding_integrity
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

from mb_checkpoint.collectives import any_rank, gather_on_rank_zero, host_group, on_rank_zero
from mb_checkpoint.mcore import quiet
from mb_checkpoint.megatron.pieces import pieces_without_data
from mb_checkpoint.save.planner import WritePlan, split_by_size
from mb_checkpoint.save.writing import DataFile, Piece

BACKEND = CheckpointingConfig("torch_dist", 1)


class TorchDistSavePlanner:
    """Planner of the saves of one run, which plans again only if the tensors of a rank differ from the previous save.

    Args:
        sharing: Ranks that share the writing of replicated data; None: the first of them writes it.
        writers: Number of files of each rank, each with its own thread.
    """

    def __init__(self, *, sharing: Any | None, writers: int) -> None:
        self._strategy = _PlanningStrategy(sharing=sharing, writers=writers)

    def plan(
        self, state: dict[str, Any], directory: Path, *, metadata: dict[str, Any], validate: bool
    ) -> WritePlan:
        """Return the data that this rank writes of a sharded state dict. Collective over all ranks; writes no data.

        Args:
            state: The state dict; it is consumed.
            directory: The empty folder that will receive it.
            metadata: Layout of its content, which is stored with it.
            validate: Check that the ranks' pieces cover each tensor exactly once, if they are planned again.
        """
        self._strategy.validate = validate
        with quiet(), garbage_collection_paused():
            plan: WritePlan = dist_checkpointing.save(
                state,
                str(directory),
                self._strategy,
                validate_access_integrity=False,  # each rank would receive the pieces of all
                async_sharded_save=True,
                content_metadata=metadata,
            )
        return plan


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause Python's collector, which would search all pieces again and again while they arrive: a third of the time.

    What is in no reference cycle, such as pieces and plans, is freed all the same.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _PlanningStrategy(TorchDistSaveShardedStrategy):  # type: ignore[misc]  # Megatron has no types
    """Megatron's torch_dist strategy, up to the point where it would stage and write tensors."""

    def __init__(self, *, sharing: Any | None, writers: int) -> None:
        super().__init__("torch_dist", 1, thread_count=writers)
        self._sharing = sharing
        self._structure: list[Any] | None = None
        self._distribution: Any = None
        self._plans: tuple[SavePlan, SavePlan, bool] | None = None
        self._index: Metadata | None = None
        self.validate = True

    def async_save(
        self, sharded_state_dict: Any, checkpoint_dir: Any, async_strategy: str = "mcore"
    ) -> WritePlan:
        structure = pieces_without_data(sharded_state_dict)
        is_new = self._structure is None or any_rank(structure != self._structure)
        if is_new:
            self._structure = self._plans = None
            if self.validate:
                self._validate(structure, sharded_state_dict)
            self._distribution = self._new_distribution(sharded_state_dict)
        if self._sharing is not None:
            distribute_main_replicas_with_precomputed_distribution(
                sharded_state_dict, self._sharing, self._distribution
            )
        by_key, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        writer = _PlanningWriter(checkpoint_dir, thread_count=self.thread_count)
        (_, index, _), central, local, _, _ = save_state_dict_async_plan(
            mcore_to_pyt_state_dict(by_key, False),
            writer,
            host_group(),
            0,
            planner=MCoreSavePlanner(
                dedup_replicated_tensors=False, flatten_state_dict=False, flatten_sharded_tensors=False
            ),
            cached_ckpt_structure=self._plans,
        )
        if is_new:
            self._structure, self._plans, self._index = structure, (central, local, True), index
        return WritePlan(files=writer.files, index=self._index)

    def _validate(self, structure: list[Any], state: Any) -> None:
        validate_sharding_integrity([], state["common_state"].data)  # warns of ranks that differ
        pieces = gather_on_rank_zero(structure)
        on_rank_zero(lambda: validate_sharding_integrity(pieces))

    def _new_distribution(self, state: Any) -> Any:
        if self._sharing is None:
            return None
        return determine_main_replica_uniform_distribution(state, host_group(self._sharing))


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
