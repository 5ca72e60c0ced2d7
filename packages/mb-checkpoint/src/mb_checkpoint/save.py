"""Saving: the sequence of a save, and the steps that precede the commit.

1. **Plan** (`prepare` here; `mcore_plan.py`, `save_shards.py`): collect the sharded state and assign each piece to one
   rank. Collective, because it needs the state of all ranks at this step.
2. **Stage**: create the hidden folder `.saving_iter_*` (`commit.open_staging`) and write the small files to it. A
   background save also copies the tensors to host memory (`staging_buffer.py`), so that training can change them.
3. **Write** (`writing.py`): each rank writes its data files, hashing them on the way, and fsyncs each one. A background
   save does this in the writer process (`background_writer.py`, `worker.py`).
4. **Gather the results**: `collectives.on_every_rank` in a synchronous save; in a background save, the polls of
   `async_save.py` through `commit_barrier.py`. Steps 5 to 9 (`finalize.py`) run in one process of rank 0.
5. **Manifest** (`commit.fsync_and_write_manifest`, `manifest.py`): after torch's index (`.metadata`), hash and fsync
   the small files, then write `manifest.json` with the hash of every file. It is written last, so that its presence
   implies that all other files were there.
6. **fsync** of the folders, deepest first, so that the rename cannot become durable before their entries.
7. **Rename** (`commit.commit`) to `iter_*`: the checkpoint becomes visible. An older folder of the same step keeps a
   hidden name until the new one is in place.
8. **Trackers** (`commit.write_trackers`): both are replaced atomically, last, because a load follows them.
9. **Prune** (`retention.py`): delete old checkpoints only now, so that a failed save never reduces their number.

A process that dies before step 8 leaves the previous checkpoint current.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from mb_checkpoint import fsdp, mcore, mcore_plan
from mb_checkpoint.adapters import apply_peft_adapter_filter_to_state_dict
from mb_checkpoint.async_save import InFlightSave, describe_saved
from mb_checkpoint.collectives import (
    RanksFailedError,
    gather,
    on_every_rank,
    on_rank_zero,
    require_process_group,
)
from mb_checkpoint.commit import discard, open_staging
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointSaveContext, SavedCheckpoint, describe_failure
from mb_checkpoint.dataloader import encode_position, position_file_name, positioned
from mb_checkpoint.errors import CheckpointSaveError, cause_of
from mb_checkpoint.finalize import FinalizeJob, finalize_save
from mb_checkpoint.layout import RUN_CONFIG, TRAIN_STATE, non_persistent_roots, staging_directory
from mb_checkpoint.manifest import Manifest
from mb_checkpoint.rerun_state import rerun_entry
from mb_checkpoint.rng import collect_rng_state, rng_digest
from mb_checkpoint.save_shards import ShardSavePlanner, entries_to_save
from mb_checkpoint.train_state import FLOPS, encode_train_state
from mb_checkpoint.verified_cache import VerifiedCache
from mb_checkpoint.writing import DataFile, Piece, write_files, write_result

CHECKPOINT_VERSION = 3.0
KEPT_NON_PERSISTENT = 2
"""Number of non-persistent checkpoints to keep if all persistent ones are kept."""
WRITERS = ("mb-checkpoint", "megatron-core", "torch")
"""Packages whose versions are recorded."""


class PlannerLike(Protocol):
    """Planner of a save; `mcore_plan.TorchDistSavePlanner` matches."""

    def plan(
        self, state: dict[str, Any], directory: Path, *, metadata: dict[str, Any], validate: bool
    ) -> mcore_plan.WritePlan:
        """Return the data that this rank writes. Collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSave:
    """Save that depends on the running training only through its tensors."""

    save: InFlightSave
    files: tuple[DataFile, ...]
    """Data that this rank writes; the tensors are those of the training."""


def save_checkpoint(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    *,
    write_assets: Callable[[Path], None] | None = None,
    planner: PlannerLike | None = None,
    validate: bool = True,
    clock: Callable[[], float] = time.perf_counter,
    verified: VerifiedCache | None = None,
) -> SavedCheckpoint:
    """Save a run; on return, the checkpoint is on the disk and the trackers name it.

    Collective over all ranks; synchronizes with the device and waits for the disk. The folder must be the same one on
    every rank.

    Args:
        ctx: State to save.
        config: Destination and options.
        write_assets: Called on rank 0 with the folder, to add files such as those of the tokenizer.
        planner: Planner with the plans of earlier saves; None creates one.
        validate: Let Megatron check that the ranks' pieces cover each tensor exactly once.
        clock: Monotonic clock in seconds.
        verified: Cache of verified checkpoints, which decides the deletion of older ones; None starts with an empty
            one. Of checkpoints that are not in the cache, only sizes are compared: the other ranks wait, and hashing
            the contents takes too long.

    Raises:
        CheckpointSaveError: Writing failed. Earlier checkpoints and the trackers are unchanged, and the new files are
            removed; if only a tracker could not be written, the complete checkpoint remains.
        CheckpointLayoutError: The optimizer state cannot be stored correctly in the selected form, or only one of model
            and layout is that of Megatron-FSDP.
        NotImplementedError: `module_name` is set.
        ValueError: `config.save` is not set, or a non-persistent checkpoint is requested and its type is not set.
    """
    prepared = prepare(
        ctx, config, write_assets=write_assets, planner=planner, validate=validate, clock=clock
    )
    save, job = prepared.save, prepared.save.job
    rank = dist.get_rank()
    with cleaned_up(save.root, save.step, save.staging):
        on_every_rank(lambda: write_result(save.staging, rank, write_files(save.staging, prepared.files)))
        finished = on_rank_zero(
            lambda: finalize_save(replace(job, contents=False), verified) if job is not None else None
        )
    return describe_saved(save, finished, seconds=clock() - save.began)


def prepare(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    *,
    write_assets: Callable[[Path], None] | None,
    planner: PlannerLike | None,
    validate: bool,
    clock: Callable[[], float],
) -> PreparedSave:
    """Run the steps that need all ranks and the current state: plan, create the staging folder, write the small files.

    Collective over all ranks. Arguments and errors as `save_checkpoint`.
    """
    began = clock()
    target = _destination(ctx, config)
    root = target.root
    require_process_group()
    counters = {**ctx.state.train_state.state_dict(), FLOPS: ctx.num_floating_point_operations_so_far}
    train_state = encode_train_state(counters)
    step = int(counters["step"])
    groups = mcore.CheckpointGroups.of(ctx.pg_collection)
    fsdp.reject_format_mismatch(ctx.model, config.ckpt_format)
    metadata = mcore.content_metadata(ctx.optimizer, config)
    mcore.reject_padded_buckets(ctx.optimizer, metadata)
    planner = planner or new_planner(config, groups)
    facts = _facts(ctx, config, groups, step=step, metadata=metadata)

    attempt = on_rank_zero(lambda: secrets.token_hex(4))
    staging = staging_directory(root, step, attempt)

    def describe() -> None:
        (staging / TRAIN_STATE).write_bytes(train_state)
        ctx.state.cfg.to_yaml(str(staging / RUN_CONFIG))
        if config.ckpt_format != fsdp.FORMAT:
            mcore_plan.write_format_marker(staging)
        if write_assets is not None and config.save_tokenizer_assets:
            write_assets(staging)

    with cleaned_up(root, step, staging):
        on_rank_zero(lambda: open_staging(root, step, attempt=attempt))
        state = sharded_state(ctx, config, step, groups=groups, metadata=metadata)
        plan = planner.plan(state, staging, metadata=metadata, validate=validate)
        position = on_every_rank(lambda: _position(ctx, groups, trust=config.trust))
        on_rank_zero(describe)
    job = None
    if dist.get_rank() == 0:
        job = FinalizeJob(
            root=root,
            staging=staging,
            world_size=dist.get_world_size(),
            index=plan.index,
            facts=facts,
            keep=target.keep,
            retain_interval=None if ctx.non_persistent_ckpt else config.save_retain_interval,
            contents=config.verify_integrity,
        )
    save = InFlightSave(root=root, step=step, staging=staging, began=began, job=job)
    return PreparedSave(save=save, files=(*plan.files, *position))


def destination(ctx: CheckpointSaveContext, config: CheckpointConfig) -> Path:
    """Return the destination folder of a save, including that of local checkpoints.

    Raises:
        NotImplementedError, ValueError: See `save_checkpoint`.
    """
    if ctx.non_persistent_ckpt and config.non_persistent_ckpt_type == "local":
        return Path(config.non_persistent_local_ckpt_dir or "")
    return _destination(ctx, config).root


def new_planner(config: CheckpointConfig, groups: mcore.CheckpointGroups) -> PlannerLike:
    """Return the planner for the layout of the section."""
    if config.ckpt_format == fsdp.FORMAT:
        return ShardSavePlanner(config)
    return mcore_plan.TorchDistSavePlanner(
        dp_cp=writing_group(config, groups),
        writers=config.storage_writers_per_rank,
        constant=config.ckpt_assume_constant_structure,
    )


def writing_group(config: CheckpointConfig, groups: mcore.CheckpointGroups) -> Any | None:
    """Return the ranks that share the writing of replicated data; None if the first of them writes it."""
    if not config.fully_parallel_save:
        return None
    return groups.sharing(config.ckpt_fully_parallel_save_process_group)


@contextmanager
def cleaned_up(root: Path, step: int, staging: Path) -> Iterator[None]:
    """Remove the staging folder if the block fails, and convert an OSError to a CheckpointSaveError."""
    try:
        yield
    except BaseException as error:
        if dist.get_rank() == 0:
            discard(staging)
        if not isinstance(error, OSError):
            raise
        reason = str(error) if isinstance(error, RanksFailedError) else cause_of(error)
        raise CheckpointSaveError(describe_failure(root, step, reason)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDestination:
    """Destination of a checkpoint."""

    root: Path
    keep: int
    """Number of checkpoints to keep there; -1 keeps all."""


def _destination(ctx: CheckpointSaveContext, config: CheckpointConfig) -> SaveDestination:
    if config.save is None:
        raise ValueError(
            "checkpoint.save: not set, so there is no folder to save to. Set it, or do not save."
        )
    reject_module_name(ctx)
    if not ctx.non_persistent_ckpt:
        return SaveDestination(root=Path(config.save), keep=_kept(config))
    if config.non_persistent_ckpt_type != "global":
        raise ValueError(
            f"checkpoint.non_persistent_ckpt_type: {config.non_persistent_ckpt_type}, and a non-persistent checkpoint "
            "on the shared file system was requested. Set it to global."
        )
    keep = KEPT_NON_PERSISTENT if _kept(config) < 0 else max(1, _kept(config))
    return SaveDestination(root=non_persistent_roots(config)[0], keep=keep)


def reject_module_name(ctx: CheckpointSaveContext) -> None:
    """Reject a context that selects one module of several.

    Raises:
        NotImplementedError: `module_name` is set.
    """
    if ctx.module_name is not None:
        raise NotImplementedError(
            "checkpoint save: module_name (one module of several) is not supported. The checkpoint would lack the "
            "other modules without notice. Omit it from the context."
        )


def _kept(config: CheckpointConfig) -> int:
    return -1 if config.most_recent_k is None else config.most_recent_k


def _position(
    ctx: CheckpointSaveContext, groups: mcore.CheckpointGroups, *, trust: bool
) -> tuple[DataFile, ...]:
    """Return the file with the position of the data loader, on one rank of each data-parallel replica."""
    iterable = positioned(ctx.train_data_iterator)
    if iterable is None or not groups.is_first_of_replica:
        return ()
    piece = Piece(index=None, data=encode_position(iterable, trust=trust))
    return (DataFile(name=position_file_name(groups.dp_rank), pieces=(piece,)),)


def sharded_state(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    step: int,
    *,
    groups: mcore.CheckpointGroups,
    metadata: dict[str, Any],
) -> dict[str, Any]:
    """Return the state of this rank in the form that the layout requires. Collective."""
    common: dict[str, Any] = {
        "checkpoint_version": CHECKPOINT_VERSION,
        "iteration": step,
        mcore.EXACT_FLOPS: int(ctx.num_floating_point_operations_so_far),
        "parallel_layout": groups.layout(ctx.model),
    }
    if config.ckpt_format == fsdp.FORMAT:
        return entries_to_save(ctx, config, common, groups=groups, metadata=metadata)
    all_sections = mcore.model_sections(ctx.model, groups, metadata)
    keep = ctx.adapter_key_filter
    sections = all_sections if keep is None else apply_peft_adapter_filter_to_state_dict(all_sections, keep)
    state = {**common, **sections}
    if config.save_optim and mcore.has_state(ctx.optimizer):
        state["optimizer"] = mcore.optimizer_section(
            ctx.optimizer, all_sections, groups, metadata, is_loading=False
        )
    if ctx.opt_param_scheduler is not None:
        state["opt_param_scheduler"] = ctx.opt_param_scheduler.state_dict()
    if config.save_rng:
        state[mcore.RNG_KEY] = _rng(groups)
    return {**state, **rerun_entry(ctx.rerun_state_machine)}


def _rng(groups: mcore.CheckpointGroups) -> Any:
    """Return one random state per (pp, tp) if the data-parallel replicas agree, else that of each rank."""
    own = collect_rng_state(mcore.MegatronRng())
    positions = gather((groups.pp.rank(), groups.tp.rank(), rng_digest(own)))
    differ = len(set(positions)) > len({position[:2] for position in positions})
    return mcore.rng_object(own, groups, per_replica=differ)


def _facts(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    groups: mcore.CheckpointGroups,
    *,
    step: int,
    metadata: dict[str, Any],
) -> Manifest:
    return Manifest(
        step=step,
        files=(),
        ckpt_format=config.ckpt_format,
        layout=groups.described(ctx.model),
        content={
            "optimizer": config.save_optim and ctx.optimizer is not None,
            "scheduler": ctx.opt_param_scheduler is not None,
            "random_states": config.save_rng,
            **metadata,
        },
        versions={name: version(name) for name in WRITERS},
    )
