"""Non-persistent checkpoints on the disk of each node: fast, not shared, and lost with the node unless replicated."""

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from mb_checkpoint import mcore
from mb_checkpoint.collectives import RanksFailedError, gather, on_every_rank
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import (
    CheckpointLoadContext,
    CheckpointSaveContext,
    LoadedCheckpoint,
    SavedCheckpoint,
    describe_failure,
)
from mb_checkpoint.errors import CheckpointSaveError, LocalStoreError
from mb_checkpoint.formats.layout import iteration_directory
from mb_checkpoint.load.restore import StateRestorer
from mb_checkpoint.load.restore_dataloader import restore_position
from mb_checkpoint.load.select import SelectedCheckpoint, SkippedCheckpoint
from mb_checkpoint.local.state import LocalState
from mb_checkpoint.megatron import fsdp
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.save.state import collect_state
from mb_checkpoint.state.callback_states import restore_callbacks
from mb_checkpoint.state.dataloader import positioned, read_dataloader_state
from mb_checkpoint.state.train_state import FLOPS

POSITION = "train_dataloader"
"""Entry with the position of each rank's data loader."""
COUNTERS = "train_state_metadata"
"""Entry with the counters, since a local checkpoint has no train_state.pt."""


class LocalStoreLike(Protocol):
    """Store of local checkpoints; `nvrx.LocalStore` matches. All methods are collective."""

    def save(self, state: dict[str, Any], step: int) -> Path:
        """Write a state. If one rank fails, every rank still returns, with or without an error."""

    def latest(self) -> int | None:
        """Return the newest complete step."""

    def load(self) -> LocalState:
        """Load the newest complete step."""


def open_local_store(config: CheckpointConfig, group: Any) -> LocalStoreLike:
    """Open the store that the section configures. Collective.

    Raises:
        LocalStoreError: nvidia-resiliency-ext is not installed on a rank, or cannot be imported.
    """
    try:
        module = on_every_rank(lambda: import_module("mb_checkpoint.local.nvrx"))
    except RanksFailedError as error:
        raise LocalStoreError(
            "checkpoint.non_persistent_ckpt_type: local checkpoints are written by nvidia-resiliency-ext, which cannot "
            f"be imported ({error}). Install mb-checkpoint[nvrx], or set it to global."
        ) from error
    store: LocalStoreLike = module.LocalStore(config, group)
    return store


def local_root(config: CheckpointConfig) -> Path:
    """Return the folder of local checkpoints on each node."""
    return Path(config.non_persistent_local_ckpt_dir or "")


def save_local(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    store: LocalStoreLike,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> SavedCheckpoint:
    """Save a non-persistent checkpoint on the disk of each node. Collective; blocks until it is written.

    Raises:
        CheckpointSaveError: A rank could not write it; the previous one is unchanged.
        CheckpointLayoutError, NotImplementedError: See `save_checkpoint`.
    """
    began = clock()
    state = collect_state(ctx, config)
    step, counters = state.step, {**state.counters, FLOPS: int(state.counters[FLOPS])}
    entries = {**state.entries, "content_metadata": state.metadata, COUNTERS: counters}
    try:
        entries |= _position(ctx, state.groups)
        path = on_every_rank(lambda: store.save(entries, step))
    except RanksFailedError as error:
        raise CheckpointSaveError(describe_failure(local_root(config), step, str(error))) from error
    return SavedCheckpoint(
        path=iteration_directory(local_root(config), step),  # that of this rank is of no use on other nodes
        step=step,
        seconds=clock() - began,
        total_bytes=sum(gather(_local_bytes(path, step))),
    )


def _local_bytes(folder: Path, step: int) -> int:
    """Return the size of a step on this rank, including copies of other ranks' state."""
    return sum(file.stat().st_size for file in folder.glob(f"iter_{step:07d}_*local.pt"))


def _position(ctx: CheckpointSaveContext, groups: CheckpointGroups) -> dict[str, Any]:
    """Return the position of each rank's data loader; empty if no rank has a stateful one. Collective."""
    iterable = positioned(ctx.train_data_iterator)
    if not any(gather(iterable is not None)):
        return {}
    position = on_every_rank(lambda: None if iterable is None else iterable.save_state())
    return {POSITION: mcore.per_rank_object(POSITION, position, groups)}


def load_local(
    ctx: CheckpointLoadContext,
    config: CheckpointConfig,
    groups: CheckpointGroups,
    stored: LocalState,
    *,
    passed: SelectedCheckpoint | None,
) -> LoadedCheckpoint:
    """Resume from a checkpoint on this node's disk. Collective; raises as `load_checkpoint`.

    Args:
        ctx: State to load into.
        config: The section.
        groups: Process groups.
        stored: The checkpoint.
        passed: The older shared checkpoint, which is recorded as skipped.
    """
    root = local_root(config)
    fsdp.reject_torch_dist_checkpoint(ctx.model, root)
    by_rank = gather(stored.tensors)
    tensor_names = [names for names in by_rank if names is not None]
    tensors = frozenset[str]().union(*tensor_names) if len(tensor_names) == len(by_rank) else None
    contents = mcore.CheckpointContents(
        common=stored.common, shapes=None, objects=stored.objects, tensors=tensors
    )
    stored_position = mcore.per_rank_object(POSITION, None, groups)
    with_position = all(gather(stored_position.unique_key in stored.objects))
    # A local checkpoint is read once, so the position of the data loader is read with the tensors. It is restored last,
    # after the counters that it belongs to.
    positions: list[Any] = []

    def read(requested: dict[str, Any]) -> dict[str, Any]:
        loaded = stored.fill({**requested, POSITION: stored_position} if with_position else requested)
        positions.append(loaded.pop(POSITION, None))
        return loaded

    notes: list[str] = []
    if ctx.skip_load_to_model_and_opt:
        read({})
    else:
        notes = StateRestorer(
            ctx,
            config,
            groups,
            root,
            contents=contents,
            resume=True,
            read=lambda requested, _reads: read(requested),
        ).run()
    counters = dict(stored.common[COUNTERS])
    step = int(counters["step"])
    ctx.state.train_state.load_state_dict(counters)
    notes += restore_callbacks(ctx.callbacks, contents.common)
    notes += restore_position(ctx, lambda: _position_of(ctx, groups, positions[0], step=step))
    older = (
        () if passed is None else (SkippedCheckpoint(path=passed.path, reason="older than the local one"),)
    )
    return LoadedCheckpoint(
        source="resumed",
        step=step,
        floating_point_operations_so_far=counters.get(FLOPS, 0),
        path=root,
        skipped=older,
        notes=tuple(notes),
        from_local_disk=True,
        non_persistent=True,
    )


def _position_of(
    ctx: CheckpointLoadContext, groups: CheckpointGroups, stored: Any | None, *, step: int
) -> Any | None:
    """Return the position in the folder that the context names, else that in the checkpoint."""
    if ctx.dataloader_load is None:
        return stored
    named = iteration_directory(ctx.dataloader_load, step)
    position = read_dataloader_state(
        named, dp_rank=groups.dp_rank, dp_size=groups.dp_size, folder=ctx.dataloader_load
    )
    return stored if position is None else position
