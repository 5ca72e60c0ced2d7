"""Saving: take the state apart, write everything aside, make it whole, then let the trackers name it."""

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
from mb_checkpoint.errors import CheckpointSaveError
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
"""Temporary checkpoints that stay where all lasting ones do."""
WRITERS = ("mb-checkpoint", "megatron-core", "torch")
"""Packages whose versions are recorded."""


class PlannerLike(Protocol):
    """Who plans a save; `mcore_plan.TorchDistSavePlanner` fits."""

    def plan(
        self, state: dict[str, Any], directory: Path, *, metadata: dict[str, Any], validate: bool
    ) -> mcore_plan.WritePlan:
        """Return what this rank writes. Collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSave:
    """A save that needs nothing more of the running training than its tensors."""

    save: InFlightSave
    files: tuple[DataFile, ...]
    """What this rank writes; the tensors are those of the training."""


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
    """Save a run; when this returns, the checkpoint is on the disk and the trackers name it.

    Collective over all ranks, and waits for the device and the disk. The folder must be the same one on
    every rank.

    Args:
        ctx: What to save.
        config: Where and how.
        write_assets: Called on rank 0 with the folder, to add files such as the tokenizer's.
        planner: Plans of earlier saves; None plans anew.
        validate: Let Megatron check that the ranks' pieces cover each tensor once.
        clock: Seconds from any start.
        verified: What this process knows of the checkpoints there, by which older ones go; None: nothing. Of those that
            it does not know, sizes alone are verified: the other ranks wait, and reading them whole takes too long.

    Raises:
        CheckpointSaveError: Something could not be written. Earlier checkpoints and the trackers are as
            before, and what was written is removed; where only a tracker could not be written, the whole
            checkpoint stays beside them.
        CheckpointLayoutError: The optimizer state cannot be stored rightly in the form requested, or one of model and
            layout is Megatron-FSDP's, and the other is not.
        NotImplementedError: One module of several.
        ValueError: `config.save` is not set, or a temporary checkpoint is requested and its kind is not set.
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
    """Do what needs all ranks and the state as it is now: plan, make the staging folder, write the small files.

    Collective over all ranks. Args and errors as `save_checkpoint`.
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
    """Return the folder that a save goes to, that of local checkpoints included.

    Raises:
        NotImplementedError, ValueError: As `save_checkpoint`.
    """
    if ctx.non_persistent_ckpt and config.non_persistent_ckpt_type == "local":
        return Path(config.non_persistent_local_ckpt_dir or "")
    return _destination(ctx, config).root


def new_planner(config: CheckpointConfig, groups: mcore.CheckpointGroups) -> PlannerLike:
    """Return a planner as the section asks for it."""
    if config.ckpt_format == fsdp.FORMAT:
        return ShardSavePlanner(config)
    return mcore_plan.TorchDistSavePlanner(
        dp_cp=writing_group(config, groups),
        writers=config.storage_writers_per_rank,
        constant=config.ckpt_assume_constant_structure,
    )


def writing_group(config: CheckpointConfig, groups: mcore.CheckpointGroups) -> Any | None:
    """Return the ranks that share the writing of what they all have; None where the first of them writes it."""
    if not config.fully_parallel_save:
        return None
    return groups.sharing(config.ckpt_fully_parallel_save_process_group)


@contextmanager
def cleaned_up(root: Path, step: int, staging: Path) -> Iterator[None]:
    """Remove the staging folder when the block fails, and say what a failed write means."""
    try:
        yield
    except BaseException as error:
        if dist.get_rank() == 0:
            discard(staging)
        if not isinstance(error, OSError):
            raise
        reason = str(error) if isinstance(error, RanksFailedError) else f"{type(error).__name__}: {error}"
        raise CheckpointSaveError(describe_failure(root, step, reason)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveDestination:
    """Where a checkpoint goes."""

    root: Path
    keep: int
    """How many stay there; -1: all."""


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
            f"checkpoint.non_persistent_ckpt_type: {config.non_persistent_ckpt_type}, and a temporary checkpoint on "
            "the shared file system was requested. Set it to global."
        )
    keep = KEPT_NON_PERSISTENT if _kept(config) < 0 else max(1, _kept(config))
    return SaveDestination(root=non_persistent_roots(config)[0], keep=keep)


def reject_module_name(ctx: CheckpointSaveContext) -> None:
    """Refuse to store one module of several.

    Raises:
        NotImplementedError: The context asks for it.
    """
    if ctx.module_name is not None:
        raise NotImplementedError(
            "checkpoint save: this version does not store one module of several (module_name), and leaving it out "
            "would lose it silently. Leave it out of the context."
        )


def _kept(config: CheckpointConfig) -> int:
    return -1 if config.most_recent_k is None else config.most_recent_k


def _position(
    ctx: CheckpointSaveContext, groups: mcore.CheckpointGroups, *, trust: bool
) -> tuple[DataFile, ...]:
    """Return the file with the position of the data loader, on the one rank of each data-parallel replica."""
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
    """Return what this rank has of a run, in the form that the layout wants. Collective."""
    common: dict[str, Any] = {
        "checkpoint_version": CHECKPOINT_VERSION,
        "iteration": step,
        mcore.EXACT_FLOPS: int(ctx.num_floating_point_operations_so_far),
        "parallel_layout": groups.layout(ctx.model),
    }
    if config.ckpt_format == fsdp.FORMAT:
        return entries_to_save(ctx, config, common, groups=groups, metadata=metadata)
    whole = mcore.model_sections(ctx.model, groups, metadata)
    keep = ctx.adapter_key_filter
    sections = whole if keep is None else apply_peft_adapter_filter_to_state_dict(whole, keep)
    state = {**common, **sections}
    if config.save_optim and mcore.has_state(ctx.optimizer):
        state["optimizer"] = mcore.optimizer_section(ctx.optimizer, whole, groups, metadata, is_loading=False)
    if ctx.opt_param_scheduler is not None:
        state["opt_param_scheduler"] = ctx.opt_param_scheduler.state_dict()
    if config.save_rng:
        state[mcore.RNG_KEY] = _rng(groups)
    return {**state, **rerun_entry(ctx.rerun_state_machine)}


def _rng(groups: mcore.CheckpointGroups) -> Any:
    """Store one random state per (pp, tp) where the data-parallel replicas agree, else each rank's own."""
    own = collect_rng_state(mcore.MegatronRng())
    places = gather((groups.pp.rank(), groups.tp.rank(), rng_digest(own)))
    differ = len(set(places)) > len({place[:2] for place in places})
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
