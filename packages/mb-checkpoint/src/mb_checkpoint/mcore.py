"""Access to Megatron Core: what a checkpoint in torch_dist holds, its reading, and the random states of a rank."""

import contextlib
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.serialization import load_common_state_dict
from megatron.core.dist_checkpointing.validation import verify_checkpoint
from megatron.core.rerun_state_machine import Call, Caller, QuickStats, RerunValidationStatus
from megatron.core.tensor_parallel.random import (
    convert_cuda_rng_state,
    get_cuda_rng_tracker,
    is_graph_safe_cuda_rng_tracker,
)

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.formats.megatron_lm import layout_of
from mb_checkpoint.formats.unpickling import weights_only
from mb_checkpoint.load.verified_reads import VerifiedReads
from mb_checkpoint.megatron import main_params
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.megatron.load_strategy import LoadStrategy
from mb_checkpoint.megatron.model import sharded_parts
from mb_checkpoint.megatron.shards import read_index
from mb_checkpoint.state.rerun_state import RERUN_KEY

RNG_KEY = "rng_state"
"""Entry with the random states, under Megatron-LM's name."""
_OBJECTS = {RNG_KEY: RNG_KEY, "rerun_state_machine_state": RERUN_KEY}
"""Key of a stored object to the part of the state that contains it, for parts that a run may leave unread."""
_SAFE = (Call, Caller, QuickStats, RerunValidationStatus)
"""Classes in the state of the rerun machine that Megatron Core does not register with torch as safe."""
_OPTIMIZER = re.compile(r"(chained_\d+\.)?optimizer\.")
"""Keys of the optimizer state."""
_CREATED_BY_FIRST_UPDATE = re.compile(r"(chained_\d+\.)?optimizer\.(?!state\.fp32_param\.)")
"""Keys of the optimizer state other than those of the main parameters, which exist before the first update."""


_NOISE = (
    "Please use DTensor instead and we are deprecating ShardedTensor",
    "torch.distributed is disabled, unavailable or uninitialized",
    "The argument order of (save|load) has been changed",
)
"""Warnings of torch about calls that Megatron Core makes; users cannot act on them."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings of `_NOISE`."""
    with warnings.catch_warnings():
        for message in _NOISE:
            warnings.filterwarnings("ignore", message=message)
        yield


def read(
    state: dict[str, Any],
    directory: Path,
    groups: CheckpointGroups,
    *,
    config: CheckpointConfig,
    reads: VerifiedReads,
) -> dict[str, Any]:
    """Read the state that a sharded state dict requests. Collective over all ranks."""
    shared = config.fully_parallel_load in (None, True)
    strategy = LoadStrategy(
        reads,
        groups.sharing(config.ckpt_fully_parallel_load_process_group) if shared else None,
        exchange_algo=config.ckpt_fully_parallel_load_exchange_algo,
        stream_ckpt_dequant=config.stream_ckpt_dequant,
        validate=config.ckpt_load_validate_sharding_integrity,
        declined=lambda key: _declined(key, state),
    )
    lists = main_params.take_lists(state)
    with quiet(), weights_only(directory, classes=_SAFE):
        loaded: dict[str, Any] = dist_checkpointing.load(
            state | main_params.by_number(lists),
            str(directory),
            strategy,
            validate_access_integrity=False,  # each rank would receive the pieces of all; LoadStrategy does it
            strict=config.dist_ckpt_strictness,
        )
    main_params.put_back_lists(loaded, lists)
    return loaded


def _declined(key: str, state: Mapping[str, Any]) -> bool:
    """Return whether a stored entry belongs to a part that a run may leave unread, and that is not requested."""
    part = "optimizer" if _OPTIMIZER.match(key) else _OBJECTS.get(key)
    return part is not None and part not in state


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContents:
    """Contents of a checkpoint folder, read without its tensors."""

    common: Mapping[str, Any]
    """State that is identical on all ranks."""
    shapes: Mapping[str, tuple[int, ...]] | None
    """Global shape of each stored tensor; None if unknown."""
    objects: frozenset[str]
    """Unique keys of the stored objects."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Type of each stored tensor; empty if unknown."""
    tensors: frozenset[str] | None = None
    """Keys of the stored tensors, where their shapes are unknown; None if these are unknown, too."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Layout of the content."""
        return dict(self.common.get("content_metadata") or {})

    @property
    def layout(self) -> Mapping[str, int] | None:
        """Parallel sizes of the run that wrote it; None if not recorded."""
        layout: Mapping[str, int] | None = self.common.get("parallel_layout")
        return layout or layout_of(self.common)

    @property
    def has_optimizer(self) -> bool:
        """Whether the checkpoint holds an optimizer state."""
        keys = self._tensor_keys
        return keys is None or any(_OPTIMIZER.match(key) for key in (*keys, *self.objects))

    @property
    def has_optimizer_states(self) -> bool:
        """Whether the checkpoint holds optimizer state that the first update creates, such as momenta."""
        keys = self._tensor_keys
        return keys is None or any(_CREATED_BY_FIRST_UPDATE.match(key) for key in keys)

    @property
    def _tensor_keys(self) -> Collection[str] | None:
        return self.tensors if self.shapes is None else self.shapes.keys()

    @property
    def model_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights only."""
        return {key: shape for key, shape in (self.shapes or {}).items() if not _OPTIMIZER.match(key)}


def read_contents(directory: Path) -> CheckpointContents:
    """Read the contents of a checkpoint. Not collective.

    torch reads the index: Megatron's `load_sharded_metadata` passes each stored tensor property to `torch.empty`, which
    does not accept `strides`, a property since torch 2.15.
    """
    verify_checkpoint(str(directory))
    index = read_index(directory)
    with quiet(), weights_only(directory, classes=_SAFE):
        common = load_common_state_dict(str(directory))
    return CheckpointContents(common=common, shapes=index.shapes, objects=index.objects, dtypes=index.dtypes)


def entries_in_checkpoint(sections: Mapping[str, Any], contents: CheckpointContents) -> dict[str, Any]:
    """Return the sharded weights without the entries that a checkpoint lacks; all of them if that is unknown."""
    if contents.shapes is None:
        return {section: dict(entries) for section, entries in sections.items()}
    names_stored = contents.objects | contents.shapes.keys()

    def stored(entry: Any) -> bool:
        names = [
            part.unique_key if isinstance(part, ShardedObject) else part.key
            for part in sharded_parts(entry)
            if isinstance(part, (ShardedObject, ShardedTensor))
        ]
        return names_stored.issuperset(names)

    return {
        section: {name: entry for name, entry in entries.items() if stored(entry)}
        for section, entries in sections.items()
    }


class MegatronRng:
    """Megatron's RNG tracker, with states that can be stored: CPU tensors in either of its modes."""

    def get_states(self) -> dict[str, torch.Tensor]:
        """Return the state of each name."""
        states = get_cuda_rng_tracker().get_states()
        return {name: convert_cuda_rng_state(state, to_graphable=False) for name, state in states.items()}

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Replace all states."""
        tracker = get_cuda_rng_tracker()
        # Megatron's tracker in its graph-safe mode, and Transformer Engine's tracker always.
        graphable = is_graph_safe_cuda_rng_tracker(tracker)
        tracker.set_states(
            {name: convert_cuda_rng_state(state, to_graphable=graphable) for name, state in states.items()}
        )


def rng_object(states: object, groups: CheckpointGroups, *, per_replica: bool = False) -> ShardedObject:
    """Return the sharded object of random states: one per (pp, tp), as Megatron-LM stores them.

    With `states=None` it requests the stored ones. Up to version 0.1, and with expert parallelism in Megatron-Bridge,
    replicas that differ are stored as one object per (pp, tp, dp x cp) rank, which `per_replica` requests.
    """
    if per_replica:
        return per_rank_object(RNG_KEY, states, groups)
    shape, offset = (groups.pp.size(), groups.tp.size()), (groups.pp.rank(), groups.tp.rank())
    return ShardedObject(RNG_KEY, states, shape, offset, replica_id=groups.dp_cp.rank())


def rng_of_rank(stored: Any, groups: CheckpointGroups) -> Mapping[str, Any] | None:
    """Return the random state of this rank among those of `rng_object`; None for another number of replicas.

    Megatron-LM stores a list of one state that all replicas share, or of one per data-parallel rank.
    """
    if not isinstance(stored, list):
        return dict(stored)
    positions = {1: 0, groups.dp_size: groups.dp_rank, groups.dp_cp.size(): groups.dp_cp.rank()}
    position = positions.get(len(stored))
    return None if position is None else dict(stored[position])


def per_rank_object(key: str, value: object, groups: CheckpointGroups) -> ShardedObject:
    """Return a sharded object with one value per (pp, tp, dp x cp) rank. With None it requests the stored value."""
    axes = (groups.pp, groups.tp, groups.dp_cp)
    shape, offset = tuple(axis.size() for axis in axes), tuple(axis.rank() for axis in axes)
    return ShardedObject(key, value, shape, offset, replica_id=0)
