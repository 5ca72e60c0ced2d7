"""Loading: select a checkpoint, compare it with the model, read it, and restore the state of the run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mb_checkpoint import mcore
from mb_checkpoint.collectives import read_for_all_ranks, require_process_group
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointLoadContext, LoadedCheckpoint
from mb_checkpoint.errors import CheckpointConfigError, CheckpointLayoutError, CheckpointNotFoundError
from mb_checkpoint.formats.layout import (
    LEGACY,
    MANIFEST,
    TRAIN_STATE,
    WEIGHTS,
    has_counters_in_arguments,
    is_non_persistent,
)
from mb_checkpoint.formats.legacy import LegacyRestorer, read_legacy
from mb_checkpoint.formats.megatron_lm import ARGUMENTS, counters_of
from mb_checkpoint.formats.metadata import is_read_first, layout_on_all_ranks, read_contents
from mb_checkpoint.formats.trust import trusted
from mb_checkpoint.load.index import index_of_all_ranks
from mb_checkpoint.load.restore import StateRestorer
from mb_checkpoint.load.restore_dataloader import restore_position
from mb_checkpoint.load.restore_shards import ShardRestorer
from mb_checkpoint.load.select import SelectedCheckpoint, select_checkpoint
from mb_checkpoint.load.sources import (
    Source,
    find_checkpoint,
    find_pretrained,
    load_intact,
    resumes_by_tracker,
)
from mb_checkpoint.load.verified_reads import Verification, verify_objects
from mb_checkpoint.local.checkpoints import LocalStoreLike, load_local
from mb_checkpoint.megatron import fsdp
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.state.adapters import KeyFilter, all_but, either
from mb_checkpoint.state.callback_states import restore_callbacks
from mb_checkpoint.state.dataloader import read_dataloader_state
from mb_checkpoint.state.train_state import EXACT_FLOPS, FLOPS, read_train_state

MODELOPT_STATE = "modelopt_state"
"""Folder that ModelOpt adds to a checkpoint."""
NO_MANIFEST_NOTE = (
    "no manifest.json (written by another program): the integrity of its files cannot be verified"
)


def load_checkpoint(
    ctx: CheckpointLoadContext, config: CheckpointConfig, *, local: LocalStoreLike | None = None
) -> LoadedCheckpoint:
    """Resume an interrupted run from `config.load`, else load the weights of `config.pretrained_checkpoint`.

    Resuming restores weights, optimizer, scheduler, counters and random states of each rank. State that the
    configuration excludes, that the checkpoint lacks, or that does not fit this parallel layout is left unchanged and
    listed in `notes`. The counters are loaded into `ctx.state.train_state`, whose `consumed_train_samples` determines
    the number of microbatches. Collective over all ranks.

    Args:
        ctx: State to load into.
        config: Source, and selection of the state to restore.
        local: Non-persistent checkpoints on this node's disk; the newest one is used unless a shared one is newer.

    Raises:
        CheckpointNotFoundError: The requested step or the initial weights are missing, or nothing was found and
            `exit_on_missing_checkpoint` is set.
        IncompleteCheckpointError: The configuration names one checkpoint, and it is incomplete or damaged.
        CheckpointReadError: A rank could not read it.
        CheckpointShapeError: It belongs to a model of another shape; nothing was changed.
        DataloaderStateError: The position of a data loader could not be restored on a rank; all other state was.
        CheckpointLayoutError: Its optimizer state cannot be read by this parallel layout; or only one of model and
            checkpoint is in the layout of Megatron-FSDP.
        NotImplementedError: `module_name` is set.
    """
    if ctx.module_name is not None:
        raise NotImplementedError(
            "checkpoint load: module_name (one module of several) is not supported. Omit it."
        )
    require_process_group()
    with trusted(*trusted_folders(config)):
        return _find_and_load(ctx, config, local=local)


def trusted_folders(config: CheckpointConfig) -> tuple[Path, ...]:
    """Return the folders whose checkpoints are unpickled without restrictions: all with `trust`, else none."""
    return (Path("/"),) if config.trust else ()


def _find_and_load(
    ctx: CheckpointLoadContext, config: CheckpointConfig, *, local: LocalStoreLike | None
) -> LoadedCheckpoint:
    """Load the weights under adapters, if any, and then the checkpoint that `config` selects. Collective."""
    groups = CheckpointGroups.of(ctx.pg_collection)
    # The weights under adapters come first, because a checkpoint of adapters has none of them.
    base, pretrained = None, config.pretrained_checkpoint
    if ctx.adapter_key_filter is not None and pretrained is not None:
        base = _load_base(ctx, config, groups, pretrained, adapters=ctx.adapter_key_filter)
        config = replace(config, pretrained_checkpoint=None)
    newest = local.latest() if local is not None and resumes_by_tracker(config) else None

    def find(rejected: Mapping[Path, str]) -> tuple[Source, SelectedCheckpoint | None]:
        return find_checkpoint(config, rejected, may_be_empty=newest is not None)

    def load(
        source: Source, chosen: SelectedCheckpoint | None, verification: Verification
    ) -> LoadedCheckpoint:
        if local is not None and newest is not None and (source != "resumed" or newest >= _step(chosen)):
            return load_local(ctx, config, groups, local.load(), passed=chosen)
        if chosen is not None:
            resume = source == "resumed"
            return _load(ctx, config, groups, chosen, resume=resume, verification=verification)
        if base is not None:
            return base
        return LoadedCheckpoint(source="nothing", notes=("no checkpoint found: random weights, step 0",))

    return load_intact(find, config, load, while_reading=not ctx.skip_load_to_model_and_opt)


def _step(chosen: SelectedCheckpoint | None) -> int:
    """Return the step of a checkpoint; -1, before all others, without one."""
    return -1 if chosen is None or chosen.step is None else chosen.step


def _load_base(
    ctx: CheckpointLoadContext,
    config: CheckpointConfig,
    groups: CheckpointGroups,
    pretrained: str,
    *,
    adapters: KeyFilter,
) -> LoadedCheckpoint:
    """Load all weights of a pretrained checkpoint except those that `adapters` accepts. Collective."""
    base = CheckpointLoadContext(
        state=ctx.state,
        model=ctx.model,
        optimizer=ctx.optimizer,
        opt_param_scheduler=None,
        adapter_key_filter=all_but(adapters),
    )
    return load_intact(
        lambda rejected: find_pretrained(pretrained, rejected),
        config,
        lambda _source, chosen, verification: _load(
            base, config, groups, chosen, resume=False, verification=verification
        ),
    )


def _load(
    ctx: CheckpointLoadContext,
    config: CheckpointConfig,
    groups: CheckpointGroups,
    chosen: SelectedCheckpoint,
    *,
    resume: bool,
    verification: Verification,
) -> LoadedCheckpoint:
    """Load a selected checkpoint: the weights, and with `resume` all other state of the run. Collective."""
    with index_of_all_ranks(chosen.path):
        read_for_all_ranks(chosen.path, lambda: _reject_modelopt_state(chosen.path))
        layout = layout_on_all_ranks(chosen.path)
        # Before the contents, which are unpickled from these objects.
        read_for_all_ranks(
            chosen.path, lambda: verify_objects(chosen.path, verification.manifest, is_read_first)
        )
        restore, contents = _restorer(ctx, groups, chosen.path, layout=layout)
        counters: dict[str, Any] = {}
        if resume:
            counters = read_for_all_ranks(chosen.path, lambda: _read_counters(chosen.path, contents))
            if EXACT_FLOPS in contents.common:
                counters[FLOPS] = contents.common[EXACT_FLOPS]
        notes = [] if (chosen.path / MANIFEST).is_file() else [NO_MANIFEST_NOTE]
        if not ctx.skip_load_to_model_and_opt:
            if layout != fsdp.FORMAT:
                fsdp.reject_torch_dist_checkpoint(ctx.model, chosen.path)
            restorer = restore(
                ctx, config, groups, chosen.path, contents=contents, resume=resume, verification=verification
            )
            notes += restorer.run()
    # Only now, because a checkpoint that is rejected above must leave the counters of the run as they were.
    if resume:
        ctx.state.train_state.load_state_dict(counters)
        notes += restore_callbacks(ctx.callbacks, contents.common)
        if counters["step"] > 0:
            notes += restore_position(
                ctx,
                lambda: read_dataloader_state(
                    chosen.path,
                    dp_rank=groups.dp_rank,
                    dp_size=groups.dp_size,
                    folder=ctx.dataloader_load,
                ),
            )
    return LoadedCheckpoint(
        source="resumed" if resume else "weights",
        step=int(counters.get("step", 0)),
        floating_point_operations_so_far=counters.get(FLOPS, 0),
        path=chosen.path,
        skipped=chosen.skipped,
        notes=tuple(notes),
        megatron_arguments=vars(contents.common[ARGUMENTS])
        if resume and ARGUMENTS in contents.common
        else {},
        non_persistent=resume and is_non_persistent(config, chosen.path),
    )


def _restorer(
    ctx: CheckpointLoadContext, groups: CheckpointGroups, path: Path, *, layout: str
) -> tuple[Callable[..., StateRestorer], mcore.CheckpointContents]:
    """Return the class that restores a checkpoint of a layout, and the contents of the checkpoint. Collective."""
    if layout == LEGACY:
        state = read_legacy(path, ctx.model, groups)
        return partial(LegacyRestorer, state=state), state.contents
    shards = layout == fsdp.FORMAT
    return ShardRestorer if shards else StateRestorer, read_contents(path, shards=shards)


def _read_counters(path: Path, contents: mcore.CheckpointContents) -> dict[str, Any]:
    """Return the counters of a run: those of train_state.pt, or Megatron-LM's.

    Raises:
        TrainStateError: The checkpoint has neither.
    """
    if has_counters_in_arguments(path):
        return counters_of(contents.common, source=str(path))
    return dict(read_train_state(path / TRAIN_STATE))


def _reject_modelopt_state(path: Path) -> None:
    """Reject a checkpoint of a model that ModelOpt changed: loading only its weights would lose the quantization."""
    if (path / MODELOPT_STATE).exists():
        raise CheckpointLayoutError(
            f"{path}: holds {MODELOPT_STATE}, the state of a model quantized or pruned by ModelOpt, which this version "
            "does not restore. Load a checkpoint of the original model, or use Megatron-Bridge."
        )


def load_model_weights(  # noqa: PLR0913 - what is loaded, each by name
    path: Path | str,
    model: Any,
    *,
    step: int | None = None,
    strict: bool = True,
    pg_collection: Any | None = None,
    verify_integrity: bool = True,
    key_filter: KeyFilter | None = None,
    base: Path | str | None = None,
    base_filter: KeyFilter | None = None,
) -> SelectedCheckpoint:
    """Load only the weights, for sampling or evaluation; return the checkpoint.

    Collective over all ranks. The parallel layout may differ from that of the run that saved it.

    Args:
        path: A checkpoint folder, or a folder whose trackers name one.
        model: A model, or the list of its chunks.
        step: Load this step instead of the newest.
        strict: Reject tensors that only the checkpoint or only the model has; False leaves both kinds unchanged.
        pg_collection: Process groups; None uses Megatron's own.
        verify_integrity: Verify contents against the manifest; False if the caller has just done so.
        key_filter: Load only the parameters whose names it accepts; None loads all of them.
        base: Checkpoint with all other parameters, such as those under adapters; None leaves them unchanged.
        base_filter: Load only those of the other parameters whose names it accepts; None loads all of them.

    Raises:
        CheckpointConfigError: `base` is passed without `key_filter`, or `base_filter` without `base`.
        CheckpointNotFoundError: There is none.
        IncompleteCheckpointError: The path or the step names one checkpoint, and it is incomplete or damaged.
        CheckpointReadError: A rank could not read it.
        CheckpointShapeError: It belongs to a model of another shape; nothing was changed.
        CheckpointLayoutError: It is in the layout of Megatron-FSDP, and the model is distributed without it; or vice
            versa.
    """
    for name, value, other, needed in (
        ("base", base, "key_filter", key_filter),
        ("base_filter", base_filter, "base", base),
    ):
        if value is not None and needed is None:
            raise CheckpointConfigError(
                f"load_model_weights: {name} has no effect without {other}, because {other} selects what comes from "
                f"elsewhere. Pass {other} as well, or leave out {name}."
            )
    require_process_group()

    def find(rejected: Mapping[Path, str]) -> tuple[Source, SelectedCheckpoint | None]:
        return "weights", select_checkpoint(path, step=step, wanted=WEIGHTS, rejected=rejected)

    config = CheckpointConfig(
        verify_integrity=verify_integrity, strict_fsdp_dtensor_load=strict and key_filter is None
    )
    groups = CheckpointGroups.of(pg_collection)
    context = _weights_context(model, strict=strict, key_filter=key_filter)
    if base is not None and key_filter is not None:
        adapter_filter = key_filter if base_filter is None else either(key_filter, all_but(base_filter))
        _load_base(context, config, groups, str(base), adapters=adapter_filter)

    def load(_: Source, chosen: SelectedCheckpoint | None, verification: Verification) -> SelectedCheckpoint:
        if chosen is None:
            raise CheckpointNotFoundError(f"{path}: no checkpoint. Name a run's checkpoint folder.")
        _load(context, config, groups, chosen, resume=False, verification=verification)
        return chosen

    return load_intact(find, config, load)


def _weights_context(model: Any, *, strict: bool, key_filter: KeyFilter | None) -> CheckpointLoadContext:
    """Return the context of a load of weights alone, into a model or its chunks."""
    return CheckpointLoadContext(
        state=None,  # type: ignore[arg-type]  # counters of a run, which a load of weights does not restore
        model=list(model) if isinstance(model, Sequence) else [model],
        optimizer=None,
        opt_param_scheduler=None,
        strict=strict,
        adapter_key_filter=key_filter,
    )
