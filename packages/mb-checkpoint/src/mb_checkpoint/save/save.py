"""Saving: the sequence of a save, and the steps that precede the commit.

1. **Collect** (`state.py`): the state of this rank in the form of the layout. Collective, because it needs the
   state of all ranks at this step.
2. **Stage** (`plan.stage_save`): create the hidden folder `.saving_iter_*` (`commit.open_staging`), assign each piece
   of the state to one rank (`megatron/plan.py`, `planner.py`), and write the small files. A background save also copies
   the tensors to host memory (`staging_buffer.py`), so that training can change them.
3. **Write** (`writing.py`): each rank writes its data files, hashing them on the way, and fsyncs each one. A background
   save does this in the writer process (`background_writer.py`, `worker.py`).
4. **Gather the results**: `collectives.on_every_rank` in a synchronous save; in a background save, the polls of
   `async_save.py` through `commit_barrier.py`. Steps 5 to 8 (`finalize.py`) run in one process of rank 0.
5. **Manifest** (`commit.fsync_and_write_manifest`, `manifest.py`): after torch's index (`.metadata`), hash and fsync
   the small files, then write `manifest.json` with the hash of every file. It is written last, so that its presence
   implies that all other files were there.
6. **fsync** of the folders, deepest first, so that the rename cannot become durable before their entries.
7. **Rename** (`commit.commit`) to `iter_*`: the checkpoint becomes visible. An older folder of the same step keeps a
   hidden name until the new one is in place.
8. **Trackers** (`commit.write_trackers`): both are replaced atomically, last, because a load follows them.
9. **Prune** (`pruning.py`, `retention.py`): rank 0 deletes old checkpoints only now, so that a failed save never
   reduces their number, and once the save has been reported, so that no other rank waits for it.

A process that dies before step 8 leaves the previous checkpoint current. Steps 3 to 9 of the saves of one run, one at a
time, are driven by `saver.Saver`. A run without Megatron Core differs only in step 1 (`torch/state.py`).
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mb_checkpoint.collectives import on_every_rank
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointSaveContext, SavedCheckpoint, StateLike
from mb_checkpoint.formats.layout import RUN_CONFIG, TRAIN_STATE, non_persistent_roots
from mb_checkpoint.formats.manifest import Manifest
from mb_checkpoint.inspect.best import metric_entry
from mb_checkpoint.inspect.verified_cache import VerifiedCache
from mb_checkpoint.megatron import fsdp
from mb_checkpoint.megatron import plan as mcore_plan
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.save.plan import SavePlan, stage_save, write_and_commit
from mb_checkpoint.save.planner import PlannerLike, ShardSavePlanner, WritePlan
from mb_checkpoint.save.pruning import Pruning
from mb_checkpoint.save.retention import PruneJob
from mb_checkpoint.save.state import SaveState, collect_state
from mb_checkpoint.save.writing import DataFile, Piece
from mb_checkpoint.state.dataloader import encode_position, position_file_name, positioned
from mb_checkpoint.state.train_state import encode_train_state
from mb_schema.versions import installed_versions

logger = logging.getLogger(__name__)

KEPT_NON_PERSISTENT = 2
"""Number of non-persistent checkpoints to keep if all persistent ones are kept."""
WRITERS = ("mb-checkpoint", "megatron-core", "torch")
"""Packages whose versions are recorded."""


def save_checkpoint(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    *,
    write_assets: Callable[[Path], None] | None = None,
) -> SavedCheckpoint:
    """Save a run; on return, the checkpoint is on the disk and the trackers name it.

    Collective over all ranks; synchronizes with the device and waits for the disk. The folder must be the same one on
    every rank. Rank 0 then deletes old checkpoints, and logs those that it cannot delete.

    Args:
        ctx: State to save.
        config: Destination and options.
        write_assets: Called on rank 0 with the folder, to add files such as those of the tokenizer.

    Raises:
        CheckpointSaveError: Writing failed. Earlier checkpoints are unchanged, no tracker names an incomplete one, and
            the new files are removed. If it failed after the rename, the complete checkpoint remains, and the trackers
            may name it.
        CheckpointLayoutError: The optimizer state cannot be stored correctly in the selected form, or only one of model
            and layout is that of Megatron-FSDP.
        NotImplementedError: `module_name` is set.
        ValueError: `config.save` is not set, or a non-persistent checkpoint is requested and its type is not set.
    """
    began = time.perf_counter()
    plan = plan_save(
        ctx, config, write_assets=write_assets, planner=None, validate=True, verified=VerifiedCache()
    )
    saved = write_and_commit(plan, began=began, clock=time.perf_counter)
    Pruning(logger.warning).start(plan.job.pruning, None)
    return saved


def save_model_weights(
    path: Path | str,
    model: Sequence[Any],
    *,
    state: StateLike,
    pg_collection: Any | None = None,
    write_assets: Callable[[Path], None] | None = None,
) -> SavedCheckpoint:
    """Save only the weights, for example after a conversion from another format.

    The counterpart of `load_model_weights`. Collective over all ranks. Errors as `save_checkpoint`.

    Args:
        path: Folder that receives the checkpoint and the trackers.
        model: Model chunks of this rank.
        state: Counters, of which `step` names the checkpoint, and the configuration to store with it.
        pg_collection: Process groups; None uses Megatron's own.
        write_assets: Called on rank 0 with the folder, to add files such as those of the tokenizer.
    """
    context = CheckpointSaveContext(
        state=state,
        model=model,
        optimizer=None,
        opt_param_scheduler=None,
        num_floating_point_operations_so_far=0,
        pg_collection=pg_collection,
    )
    config = CheckpointConfig(save=str(path), save_optim=False, save_rng=False)
    return save_checkpoint(context, config, write_assets=write_assets)


def plan_save(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    *,
    write_assets: Callable[[Path], None] | None,
    planner: PlannerLike | None,
    validate: bool,
    verified: VerifiedCache,
) -> SavePlan:
    """Run steps 1 and 2, which need all ranks and the current state; return what remains to be written.

    Collective over all ranks. Arguments and errors as `save_checkpoint`. `planner` has the plans of earlier saves (None
    creates one); with `validate`, Megatron checks that the ranks' pieces cover each tensor exactly once; `verified` has
    the checkpoints that this run has found damaged, which do not count among those to keep.
    """
    root = destination(ctx, config)
    state = collect_state(ctx, config)
    planned_by = planner or new_planner(config, state.groups)

    def plan(staging: Path) -> WritePlan:
        planned = planned_by.plan(state.entries, staging, metadata=state.metadata, validate=validate)
        position = on_every_rank(lambda: _position(ctx, state.groups, trust=config.trust))
        return replace(planned, files=(*planned.files, *position))

    return stage_save(
        root,
        _facts(ctx, config, state),
        plan=plan,
        write_small_files=lambda staging: _write_small_files(
            staging, ctx, config, state.counters, write_assets
        ),
        pruning=PruneJob(
            root=root,
            step=state.step,
            keep=_number_to_keep(ctx, config),
            retain_interval=None if ctx.non_persistent_ckpt else config.save_retain_interval,
            verified=verified,
        ),
        checksum=config.checksum,
    )


def destination(ctx: CheckpointSaveContext, config: CheckpointConfig) -> Path:
    """Return the destination folder of a save on the shared file system.

    Raises:
        ValueError: See `save_checkpoint`.
    """
    if config.save is None:
        raise ValueError(
            "checkpoint.save: not set, so there is no folder to save to. Set it, or do not save."
        )
    if not ctx.non_persistent_ckpt:
        return Path(config.save)
    if config.non_persistent_ckpt_type != "global":
        raise ValueError(
            f"checkpoint.non_persistent_ckpt_type: {config.non_persistent_ckpt_type}, and a non-persistent checkpoint "
            "on the shared file system was requested. Set it to global."
        )
    return non_persistent_roots(config)[0]


def _number_to_keep(ctx: CheckpointSaveContext, config: CheckpointConfig) -> int:
    keep = -1 if config.most_recent_k is None else config.most_recent_k
    if not ctx.non_persistent_ckpt:
        return keep
    return KEPT_NON_PERSISTENT if keep < 0 else max(1, keep)


def new_planner(config: CheckpointConfig, groups: CheckpointGroups) -> PlannerLike:
    """Return the planner for the layout of the section."""
    if config.ckpt_format == fsdp.FORMAT:
        return ShardSavePlanner(config)
    return mcore_plan.TorchDistSavePlanner(
        sharing=writing_group(config, groups), writers=config.storage_writers_per_rank
    )


def writing_group(config: CheckpointConfig, groups: CheckpointGroups) -> Any | None:
    """Return the ranks that share the writing of replicated data; None if the first of them writes it."""
    if not config.fully_parallel_save:
        return None
    return groups.sharing(config.ckpt_fully_parallel_save_process_group)


def _write_small_files(
    staging: Path,
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    counters: Mapping[str, object],
    write_assets: Callable[[Path], None] | None,
) -> None:
    """Write counters, configuration, the marker of the layout and the assets; for rank 0."""
    (staging / TRAIN_STATE).write_bytes(encode_train_state(counters))
    ctx.state.cfg.to_yaml(str(staging / RUN_CONFIG))
    if config.ckpt_format != fsdp.FORMAT:
        mcore_plan.write_format_marker(staging)
    if write_assets is not None and config.save_tokenizer_assets:
        write_assets(staging)


def _position(ctx: CheckpointSaveContext, groups: CheckpointGroups, *, trust: bool) -> tuple[DataFile, ...]:
    """Return the file with the position of the data loader, on one rank of each data-parallel replica."""
    iterable = positioned(ctx.train_data_iterator)
    if iterable is None or not groups.is_first_of_replica:
        return ()
    piece = Piece(index=None, data=encode_position(iterable, trust=trust))
    return (DataFile(name=position_file_name(groups.dp_rank), pieces=(piece,)),)


def _facts(ctx: CheckpointSaveContext, config: CheckpointConfig, state: SaveState) -> Manifest:
    """Return the manifest of a save without the list of files."""
    return Manifest(
        step=state.step,
        files=(),
        ckpt_format=config.ckpt_format,
        layout=state.groups.described(ctx.model),
        content={
            "optimizer": config.save_optim and ctx.optimizer is not None,
            "scheduler": ctx.opt_param_scheduler is not None,
            "random_states": config.save_rng,
            **metric_entry(config.best_metric, config.best_metric_mode, ctx.best_metric),
            **state.metadata,
        },
        versions=installed_versions(*WRITERS),
    )
