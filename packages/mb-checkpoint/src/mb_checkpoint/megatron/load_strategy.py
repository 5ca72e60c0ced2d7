"""Megatron's parallel load, with lists and objects of all ranks on rank 0 and in host memory alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron.core.dist_checkpointing import ShardedObject
from megatron.core.dist_checkpointing.dict_utils import (
    dict_list_map_inplace,
    extract_matching_values,
    merge,
    nested_values,
)
from megatron.core.dist_checkpointing.exchange_utils import determine_main_replica_uniform_distribution
from megatron.core.dist_checkpointing.mapping import is_main_replica
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelLoadStrategyWrapper,
    distribute_main_replicas_with_precomputed_distribution,
)
from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy
from megatron.core.dist_checkpointing.validation import validate_sharding_integrity

from mb_checkpoint.collectives import gather_on_rank_zero, host_group, on_rank_zero
from mb_checkpoint.formats.unpickling import weights_only
from mb_checkpoint.load.verified_reads import IN_MODEL, VerifiedReads
from mb_checkpoint.megatron.pieces import pieces_without_data


class _ReadOnAllRanks(TorchDistLoadShardedStrategy):  # type: ignore[misc]  # Megatron has no types
    """Megatron's reading, whose failure on one rank is raised on all: they would wait for its tensors."""

    def __init__(self, reads: VerifiedReads, *, stream_ckpt_dequant: bool) -> None:
        super().__init__(stream_ckpt_dequant=stream_ckpt_dequant)
        self._reads = reads

    def load(
        self, sharded_state_dict: Any, checkpoint_dir: Path, async_strategy: str = "mcore"
    ) -> dict[Any, Any]:
        """Read a sharded state dict. Collective over all ranks."""

        def read() -> dict[Any, Any]:
            with weights_only(Path(checkpoint_dir)):  # which turns the errors of torch into exceptions
                own: dict[Any, Any] = super(_ReadOnAllRanks, self).load(
                    sharded_state_dict, checkpoint_dir, async_strategy
                )
                return own

        return self._reads.read(read, after=IN_MODEL)


class LoadStrategy(FullyParallelLoadStrategyWrapper):  # type: ignore[misc]  # Megatron has no types
    """Load in which each tensor is read by one rank of a group, and sent to the others.

    Args:
        reads: Reads of the checkpoint.
        group: Ranks that share the reading; None: each rank reads what it needs.
        exchange_algo: Megatron's algorithm of the exchange.
        stream_ckpt_dequant: Dequantize one tensor at a time.
        validate: Check that the ranks request each piece exactly once.
        declined: Returns whether the run has declined an entry with this key, so that its absence is no mismatch.
    """

    def __init__(
        self,
        reads: VerifiedReads,
        group: Any | None,
        *,
        exchange_algo: str,
        stream_ckpt_dequant: bool,
        validate: bool,
        declined: Callable[[str], bool],
    ) -> None:
        base = _ReadOnAllRanks(reads, stream_ckpt_dequant=stream_ckpt_dequant)
        super().__init__(base, group, exchange_algo=exchange_algo)
        self._validate, self._declined = validate, declined

    def load_sharded_metadata(self, checkpoint_dir: Path) -> dict[str, Any]:
        """Return the stored entries that are compared with the requested ones."""
        stored = super().load_sharded_metadata(checkpoint_dir)
        return {key: entry for key, entry in stored.items() if not self._declined(entry.key)}

    def load(
        self, sharded_state_dict: Any, checkpoint_dir: Path, async_strategy: str = "mcore"
    ) -> dict[Any, Any]:
        """Read a sharded state dict. Collective over all ranks."""
        if self._validate:
            pieces = gather_on_rank_zero(pieces_without_data(sharded_state_dict))
            on_rank_zero(lambda: validate_sharding_integrity(pieces))
        if self.parallelization_group is None:
            own: dict[Any, Any] = self.base_strategy.load(sharded_state_dict, checkpoint_dir, async_strategy)
            return own
        objects, tensors = extract_matching_values(
            sharded_state_dict, lambda entry: isinstance(entry, ShardedObject)
        )
        loaded: dict[Any, Any] = {}
        merge(loaded, self._objects(objects, checkpoint_dir))
        merge(loaded, super().load(tensors, checkpoint_dir, async_strategy))
        return loaded

    def _objects(self, requested: Any, directory: Path) -> Any:
        """Return objects, each of which its first holder reads for all ranks."""
        first = {
            each.unique_key: each for each in nested_values(requested) if is_main_replica(each.replica_id)
        }
        read = gather_on_rank_zero(self.base_strategy.load(first, directory))
        values = on_rank_zero(lambda: {key: value for part in read for key, value in part.items()})
        return dict_list_map_inplace(lambda each: values[each.unique_key], requested)

    def apply_loading_parallelization(self, sharded_state_dict: Any) -> Any:
        """Return the rank that reads each tensor; see Megatron."""
        distribution = determine_main_replica_uniform_distribution(
            sharded_state_dict, host_group(self.parallelization_group), True
        )
        distribute_main_replicas_with_precomputed_distribution(
            sharded_state_dict, self.parallelization_group, distribution
        )
        return distribution
