"""Loading: choose a checkpoint, compare it with the model, read it, put everything back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mb_checkpoint import extra_state, fsdp, mcore
from mb_checkpoint.adapters import KeyFilter, without
from mb_checkpoint.agreement import need_process_group
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointLoadContext, LoadedCheckpoint
from mb_checkpoint.dataloader import positioned, read_dataloader_state
from mb_checkpoint.errors import CheckpointNotFoundError
from mb_checkpoint.layout import TRAIN_STATE, WEIGHTS, format_of
from mb_checkpoint.local import LocalState, LocalStoreLike
from mb_checkpoint.restore import Restore, check_shapes
from mb_checkpoint.restore_shards import RestoreShards, contents_of_shards, load_shards
from mb_checkpoint.select import PassedOver, Selection, select_checkpoint
from mb_checkpoint.sources import (
    Source,
    find_checkpoint,
    find_pretrained,
    resumes_by_tracker,
    sound_checkpoint,
)
from mb_checkpoint.train_state import FLOPS, read_train_state


def load_checkpoint(
    ctx: CheckpointLoadContext, config: CheckpointConfig, *, local: LocalStoreLike | None = None
) -> LoadedCheckpoint:
    """Resume an interrupted run from `config.load`, else take the weights of `config.pretrained_checkpoint`.

    Resuming restores weights, optimizer, scheduler, counters and random states of each rank. What the
    configuration declines, what the checkpoint lacks and what does not fit this parallel layout is left as it
    is and named in `notes`. The counters are put into `ctx.state.train_state`; whoever computes microbatches
    reads `consumed_train_samples` there. Collective over all ranks.

    Args:
        ctx: What to load into.
        config: From where, and what of it.
        local: Temporary checkpoints on this node's disk; the newest one is taken unless a shared one is newer.

    Raises:
        CheckpointNotFoundError: The wanted step or the starting weights are missing, or nothing was found
            and `exit_on_missing_checkpoint` is set.
        IncompleteCheckpointError: The one checkpoint that was named is not whole.
        CheckpointShapeError: It belongs to a model of another shape; nothing was changed.
        CheckpointLayoutError: Its optimizer state cannot be read by this parallel layout; or one of model and
            checkpoint is of Megatron-FSDP, and the other is not.
        NotImplementedError: One module of several was asked for.
    """
    if ctx.module_name is not None:
        raise NotImplementedError("checkpoint load: module_name (one module of several) is not carried out.")
    need_process_group()
    groups = mcore.Groups.of(ctx.pg_collection)
    mcore.refuse_padded_buckets(ctx.optimizer, mcore.content_metadata(ctx.optimizer, config))
    base, pretrained = None, config.pretrained_checkpoint
    if ctx.adapter_key_filter is not None and pretrained is not None:
        base = _load_base(ctx, config, groups, pretrained, adapters=ctx.adapter_key_filter)
        config = replace(config, pretrained_checkpoint=None)
    newest = local.latest() if local is not None and resumes_by_tracker(config) else None
    with sound_checkpoint(lambda rejected: find_checkpoint(config, rejected), config) as (source, chosen):
        if local is not None and newest is not None and (source != "resumed" or newest >= (_step(chosen))):
            return _load_local(ctx, config, groups, local.load(), passed=chosen)
        if chosen is not None:
            return _load(ctx, config, groups, chosen, resume=source == "resumed")
    if base is not None:
        return base
    return LoadedCheckpoint(source="nothing", notes=("no checkpoint found: random weights, step 0",))


def _step(chosen: Selection | None) -> int:
    return -1 if chosen is None or chosen.step is None else chosen.step


def _load_local(
    ctx: CheckpointLoadContext,
    config: CheckpointConfig,
    groups: mcore.Groups,
    stored: LocalState,
    *,
    passed: Selection | None,
) -> LoadedCheckpoint:
    """Resume from a checkpoint on this node's disk. Collective."""
    contents = mcore.Contents(common=stored.common, shapes=None, objects=stored.objects)
    root = Path(config.non_persistent_local_ckpt_dir or "")
    notes = Restore(
        ctx, config, groups, root, contents=contents, resume=True, read=lambda asked: stored.fill(asked)
    ).run()
    counters = dict(stored.common["train_state_metadata"])
    ctx.state.train_state.load_state_dict(counters)
    if positioned(ctx.train_data_iterator) is not None:
        notes += ["data loader: local checkpoints hold no position; it starts anew"]
    older = () if passed is None else (PassedOver(path=passed.path, reason="older than the local one"),)
    return LoadedCheckpoint(
        source="resumed",
        step=int(counters["step"]),
        floating_point_operations_so_far=counters.get(FLOPS, 0),
        path=root,
        passed_over=older,
        notes=tuple(notes),
    )


def _load_base(
    ctx: CheckpointLoadContext,
    config: CheckpointConfig,
    groups: mcore.Groups,
    pretrained: str,
    *,
    adapters: KeyFilter,
) -> LoadedCheckpoint:
    """Load all weights but those of the adapters. Collective."""
    base = CheckpointLoadContext(
        state=ctx.state,
        model=ctx.model,
        optimizer=ctx.optimizer,
        opt_param_scheduler=None,
        adapter_key_filter=without(adapters),
    )
    with sound_checkpoint(lambda rejected: find_pretrained(pretrained, rejected), config) as (_, chosen):
        return _load(base, config, groups, chosen, resume=False)


def _load(
    ctx: CheckpointLoadContext,
    config: CheckpointConfig,
    groups: mcore.Groups,
    chosen: Selection,
    *,
    resume: bool,
) -> LoadedCheckpoint:
    shards = format_of(chosen.path) == fsdp.FORMAT
    contents = contents_of_shards(chosen.path) if shards else mcore.contents_of(chosen.path)
    notes: list[str] = []
    if not ctx.skip_load_to_model_and_opt:
        if not shards:
            fsdp.refuse_other_checkpoint(ctx.model, chosen.path)
        restore = RestoreShards if shards else Restore
        notes = restore(ctx, config, groups, chosen.path, contents=contents, resume=resume).run()
    counters: dict[str, Any] = {}
    if resume:
        counters = read_train_state(chosen.path / TRAIN_STATE)
        if mcore.EXACT_FLOPS in contents.common:
            counters[FLOPS] = contents.common[mcore.EXACT_FLOPS]
        ctx.state.train_state.load_state_dict(counters)
        notes += _restore_position(ctx, groups, chosen.path, step=int(counters["step"]))
    return LoadedCheckpoint(
        source="resumed" if resume else "weights",
        step=int(counters.get("step", 0)),
        floating_point_operations_so_far=counters.get(FLOPS, 0),
        path=chosen.path,
        passed_over=chosen.passed_over,
        notes=tuple(notes),
    )


def _restore_position(
    ctx: CheckpointLoadContext, groups: mcore.Groups, path: Path, *, step: int
) -> list[str]:
    """Put a data loader with a position of its own where it stood; return a note where nothing was stored."""
    iterable = positioned(ctx.train_data_iterator)
    if iterable is None or step == 0:
        return []
    stored = read_dataloader_state(path, dp_rank=groups.dp_rank, folder=ctx.dataloader_load)
    if stored is None:
        return ["data loader: no position was stored; it starts anew"]
    iterable.restore_state(stored)
    return []


def load_model_weights(
    path: Path | str,
    model: Any,
    *,
    step: int | None = None,
    strict: bool = True,
    pg_collection: Any | None = None,
) -> Selection:
    """Load the weights alone, for sampling or evaluation; return which checkpoint they came from.

    Collective over all ranks. The model may be laid out otherwise than the run that saved it.

    Args:
        path: A checkpoint folder, or a folder whose trackers name one.
        model: A model, or the list of its chunks.
        step: Take this step instead of the newest.
        strict: Refuse tensors that only the checkpoint or only the model has; False leaves both kinds as they are.
        pg_collection: Process groups; None takes Megatron's own.

    Raises:
        CheckpointNotFoundError: There is none.
        IncompleteCheckpointError: The one that was named is not whole.
        CheckpointShapeError: It belongs to a model of another shape; nothing was changed.
        CheckpointLayoutError: It is of Megatron-FSDP, and the model is spread over ranks without it; or the other way
            round.
    """
    need_process_group()

    def find(rejected: Mapping[Path, str]) -> tuple[Source, Selection | None]:
        return "weights", select_checkpoint(path, step=step, wanted=WEIGHTS, rejected=rejected)

    with sound_checkpoint(find, CheckpointConfig()) as (_, chosen):
        if chosen is None:
            raise CheckpointNotFoundError(f"{path}: no checkpoint there. Name a run's checkpoint folder.")
        chunks = list(model) if isinstance(model, Sequence) else [model]
        groups = mcore.Groups.of(pg_collection)
        if format_of(chosen.path) == fsdp.FORMAT:
            load_shards(chosen.path, chunks, groups, strict=strict)
            return chosen
        fsdp.refuse_other_checkpoint(chunks, chosen.path)
        contents = mcore.contents_of(chosen.path)
        sections = mcore.model_sections(chunks, groups, contents.metadata)
        check_shapes(
            mcore.shapes_of(sections),
            contents.model_shapes,
            path=chosen.path,
            may_lack=not strict,
            may_have_more=not strict,
        )
        left = extra_state.lacking(sections, contents) if strict else {}
        asked = extra_state.without(sections, left) if strict else mcore.stored_part(sections, contents)
        loaded = mcore.read(dict(asked), chosen.path, groups, config=CheckpointConfig())
        for section, values in left.items():
            loaded[section] |= values
        mcore.load_model_sections(chunks, loaded, strict=strict)
    return chosen
