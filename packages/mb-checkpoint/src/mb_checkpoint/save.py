"""Saving one checkpoint: write everything aside, make it whole, then let the trackers name it."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from mb_checkpoint import mcore
from mb_checkpoint.agreement import gather, need_process_group, on_rank_zero
from mb_checkpoint.commit import commit, discard_staging, open_staging
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointSaveContext, SavedCheckpoint
from mb_checkpoint.errors import CheckpointSaveError
from mb_checkpoint.layout import RUN_CONFIG, TRAIN_STATE, staging_directory
from mb_checkpoint.retention import Pruned, prune
from mb_checkpoint.rng import collect_rng_state, rng_digest
from mb_checkpoint.train_state import FLOPS, encode_train_state

CHECKPOINT_VERSION = 3.0


def save_checkpoint(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    *,
    write_assets: Callable[[Path], None] | None = None,
    validate: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> SavedCheckpoint:
    """Save a run; when this returns, the checkpoint is on the disk and the trackers name it.

    Collective over all ranks, and waits for the device and the disk. The folder must be the same one on
    every rank.

    Args:
        ctx: What to save.
        config: Where and how.
        write_assets: Called on rank 0 with the folder, to add files such as the tokenizer's.
        validate: Let Megatron check that the ranks' pieces cover each tensor once.
        clock: Seconds from any start.

    Raises:
        CheckpointSaveError: Something could not be written. Earlier checkpoints and the trackers are as
            before, and what was written is removed; where only a tracker could not be written, the whole
            checkpoint stays beside them.
        CheckpointLayoutError: The optimizer state cannot be stored rightly in the form asked for.
        NotImplementedError: A temporary checkpoint, one module of several, or an iterator's own state.
        ValueError: `config.save` is not set.
    """
    started = clock()
    root = _target(ctx, config)
    need_process_group()
    counters = {**ctx.state.train_state.state_dict(), FLOPS: ctx.num_floating_point_operations_so_far}
    train_state = encode_train_state(counters)
    step = int(counters["step"])
    groups = mcore.Groups.of(ctx.pg_collection)
    metadata = mcore.content_metadata(ctx.optimizer, config)
    mcore.refuse_padded_buckets(ctx.optimizer, metadata)
    state = _sharded_state(ctx, config, step, groups=groups, metadata=metadata)

    def finish() -> tuple[Path, Pruned]:
        staging = staging_directory(root, step)
        (staging / TRAIN_STATE).write_bytes(train_state)
        ctx.state.cfg.to_yaml(str(staging / RUN_CONFIG))
        if write_assets is not None and config.save_tokenizer_assets:
            write_assets(staging)
        path = commit(root, step)
        return path, prune(root, keep=_keep(config), protected=step)

    try:
        staging = on_rank_zero(lambda: open_staging(root, step))
        mcore.write(state, staging, groups, config=config, metadata=metadata, validate=validate)
        path, pruned = on_rank_zero(finish)
    except BaseException as error:
        if dist.get_rank() == 0:
            discard_staging(root, step)
        if isinstance(error, mcore.WRITE_ERRORS):
            raise CheckpointSaveError(_failure(root, step, error)) from error
        raise
    return SavedCheckpoint(path=path, step=step, seconds=clock() - started, pruned=pruned)


def _target(ctx: CheckpointSaveContext, config: CheckpointConfig) -> Path:
    if config.save is None:
        raise ValueError(
            "checkpoint.save: not set, so there is no folder to save to. Set it, or do not save."
        )
    wishes = {
        "non_persistent_ckpt (a temporary checkpoint)": ctx.non_persistent_ckpt,
        "module_name (one module of several)": ctx.module_name is not None,
        "train_data_iterator with save_state (a position of its own)": hasattr(
            getattr(ctx.train_data_iterator, "iterable", None), "save_state"
        ),
    }
    asked = [name for name, wish in wishes.items() if wish]
    if asked:
        raise NotImplementedError(
            f"checkpoint save: this version does not store {', '.join(asked)}, and leaving it out would lose it "
            "silently. Leave it out of the context."
        )
    return Path(config.save)


def _sharded_state(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    step: int,
    *,
    groups: mcore.Groups,
    metadata: dict[str, Any],
) -> dict[str, Any]:
    sections = mcore.model_sections(ctx.model, groups, metadata)
    state: dict[str, Any] = {
        "checkpoint_version": CHECKPOINT_VERSION,
        "iteration": step,
        mcore.EXACT_FLOPS: int(ctx.num_floating_point_operations_so_far),
        "parallel_layout": groups.layout(ctx.model),
        **sections,
    }
    if config.save_optim and mcore.has_state(ctx.optimizer):
        state["optimizer"] = mcore.optimizer_section(
            ctx.optimizer, sections, groups, metadata, is_loading=False
        )
    if ctx.opt_param_scheduler is not None:
        state["opt_param_scheduler"] = ctx.opt_param_scheduler.state_dict()
    if config.save_rng:
        state[mcore.RNG_KEY] = _rng(groups)
    return state


def _rng(groups: mcore.Groups) -> Any:
    """Store one random state per (pp, tp) where the data-parallel replicas agree, else each rank's own."""
    own = collect_rng_state(mcore.MegatronRng())
    places = gather((groups.pp.rank(), groups.tp.rank(), rng_digest(own)))
    differ = len(set(places)) > len({place[:2] for place in places})
    return mcore.rng_object(own, groups, per_replica=differ)


def _keep(config: CheckpointConfig) -> int:
    return -1 if config.most_recent_k is None else config.most_recent_k


def _failure(root: Path, step: int, error: BaseException) -> str:
    free = f"{shutil.disk_usage(root).free / 2**30:.1f} GiB free" if root.is_dir() else "no such folder"
    return (
        f"checkpoint save at step {step} to {root} failed ({free}): {_cause(error)}. Earlier checkpoints and the "
        "trackers are as before. Make room or repair the folder, then resume."
    )


def _cause(error: BaseException) -> str:
    """Return the error that a rank met, without the tracebacks that torch gathers around it."""
    if (
        isinstance(error, CheckpointException) and error.failures
    ):  # not every rank is told the failures of the others
        rank, (inner, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {type(inner).__name__}: {inner}"
    return f"{type(error).__name__}: {error}"
