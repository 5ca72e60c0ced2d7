"""Loading: choose a checkpoint, compare it with the model, read it, put everything back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mb_checkpoint import masters, mcore
from mb_checkpoint.adapters import KeyFilter, apply_peft_adapter_filter_to_state_dict, without
from mb_checkpoint.agreement import gather, need_process_group
from mb_checkpoint.chains import fit_chain
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointLoadContext, LoadedCheckpoint
from mb_checkpoint.dataloader import positioned, read_dataloader_state
from mb_checkpoint.errors import (
    CheckpointLayoutError,
    CheckpointNotFoundError,
    CheckpointShapeError,
)
from mb_checkpoint.layout import TRAIN_STATE, WEIGHTS
from mb_checkpoint.local import LocalState, LocalStoreLike
from mb_checkpoint.reruns import RERUN_KEY, rerun_request, take_over
from mb_checkpoint.rng import restore_rng_state
from mb_checkpoint.select import PassedOver, Selection, select_checkpoint
from mb_checkpoint.sources import (
    SHOWN,
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
        CheckpointLayoutError: Its optimizer state cannot be read by this parallel layout.
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
    notes = _Load(
        ctx, config, groups, root, contents=contents, resume=True, read=lambda asked: stored.fill(asked)
    ).run()
    counters = dict(stored.common["train_state_metadata"])
    ctx.state.train_state.load_state_dict(counters)
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
    contents = mcore.contents_of(chosen.path)
    notes: list[str] = []
    if not ctx.skip_load_to_model_and_opt:
        notes = _Load(ctx, config, groups, chosen.path, contents=contents, resume=resume).run()
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
    """
    need_process_group()

    def find(rejected: Mapping[Path, str]) -> tuple[Source, Selection | None]:
        return "weights", select_checkpoint(path, step=step, wanted=WEIGHTS, rejected=rejected)

    with sound_checkpoint(find, CheckpointConfig()) as (_, chosen):
        if chosen is None:
            raise CheckpointNotFoundError(f"{path}: no checkpoint there. Name a run's checkpoint folder.")
        chunks = list(model) if isinstance(model, Sequence) else [model]
        groups = mcore.Groups.of(pg_collection)
        contents = mcore.contents_of(chosen.path)
        sections = mcore.model_sections(chunks, groups, contents.metadata)
        check_shapes(sections, contents, path=chosen.path, may_lack=not strict, may_have_more=not strict)
        asked = sections if strict else mcore.stored_part(sections, contents)
        loaded = mcore.read(dict(asked), chosen.path, groups, config=CheckpointConfig())
        mcore.load_model_sections(chunks, loaded, strict=strict)
    return chosen


def check_shapes(
    sections: Mapping[str, Any],
    contents: mcore.Contents,
    *,
    path: Path,
    may_lack: bool = False,
    may_have_more: bool = False,
) -> None:
    """Compare the weights that all ranks ask for with those that a checkpoint holds. Collective.

    Args:
        sections: Sharded weights of this rank.
        contents: What the checkpoint holds.
        path: Its folder, for the message.
        may_lack: The checkpoint need not hold all of them.
        may_have_more: It may hold others, too.

    Raises:
        CheckpointShapeError: A tensor has another shape, or is missing there or here; the message names the first
            ones. Raised on every rank.
    """
    if contents.shapes is None:
        return
    wanted: dict[str, tuple[int, ...]] = {}
    for shapes in gather(mcore.shapes_of(sections)):
        wanted |= shapes
    stored = contents.model_shapes
    lines = []
    for key in sorted(wanted.keys() | stored.keys()):
        here, there = wanted.get(key), stored.get(key)
        left = (there is None and may_lack) or (here is None and may_have_more)
        if here != there and not left:
            lines.append(f"{key}: {_shape(there)} in the checkpoint, {_shape(here)} in the model")
    if lines:
        more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        raise CheckpointShapeError(
            f"{path}: made by a model of another shape: {'; '.join(lines[:SHOWN])}{more}. Set the model as in "
            "that checkpoint's run_config.yaml, or load another checkpoint."
        )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


class _Load:
    """One load of tensors and objects: what to ask for, and where to put what comes back."""

    def __init__(
        self,
        ctx: CheckpointLoadContext,
        config: CheckpointConfig,
        groups: mcore.Groups,
        path: Path,
        *,
        contents: mcore.Contents,
        resume: bool,
        read: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        self._ctx, self._config, self._groups, self._path = ctx, config, groups, path
        self._read = read or (lambda asked: mcore.read(asked, path, groups, config=config))
        self._resume = resume
        self._contents = contents
        self._notes: list[str] = []

    def run(self) -> list[str]:
        ctx, metadata = self._ctx, self._contents.metadata
        whole = mcore.model_sections(ctx.model, self._groups, metadata)
        keep = ctx.adapter_key_filter
        sections = whole if keep is None else apply_peft_adapter_filter_to_state_dict(whole, keep)
        check_shapes(
            sections,
            self._contents,
            path=self._path,
            may_lack=not ctx.strict,
            may_have_more=not ctx.strict or keep is not None,
        )
        asked: dict[str, Any] = dict(sections if ctx.strict else self._stored_part(sections))
        with_optimizer = self._wants_optimizer()
        has_masters = mcore.has_state(ctx.optimizer) and not with_optimizer
        exact = has_masters and self._config.load_main_params_from_ckpt
        if exact:
            asked = masters.in_float32(asked)
        if with_optimizer:
            asked["optimizer"] = mcore.optimizer_section(
                ctx.optimizer, whole, self._groups, metadata, is_loading=True
            )
        if self._wants_rng():
            per_replica = self._rng_key(per_replica=True) in self._contents.objects
            asked[mcore.RNG_KEY] = mcore.rng_object(None, self._groups, per_replica=per_replica)
        asked |= self._rerun_request()
        loaded = self._read(asked)
        take_over(ctx.rerun_state_machine, loaded, asked=RERUN_KEY in asked)
        self._put_back(loaded, with_optimizer=with_optimizer, exact=exact, with_rng=mcore.RNG_KEY in asked)
        return self._notes

    def _stored_part(self, sections: Mapping[str, Any]) -> dict[str, Any]:
        part = mcore.stored_part(sections, self._contents)
        lacking = sum(len(section) - len(part[name]) for name, section in sections.items())
        if lacking:
            self._leave(
                f"weights: the checkpoint lacks {lacking} of this rank's entries; they stay as they are"
            )
        return part

    def _wants_optimizer(self) -> bool:
        if not self._resume or not mcore.has_state(self._ctx.optimizer):
            return False
        if not self._config.load_optim:
            return self._leave("optimizer: load_optim is off; it starts fresh")
        if not self._contents.has_optimizer:
            return self._leave("optimizer: the checkpoint holds none; it starts fresh")
        stored, here = self._contents.layout, self._groups.layout(self._ctx.model)
        bound = self._contents.metadata.get(mcore.SHARDING_KEY) == "dp_reshardable"
        if bound and stored is not None and dict(stored) != here:
            raise CheckpointLayoutError(
                f"{self._path}: its optimizer state was stored for {dict(stored)} and this run has {here}; the "
                "form dp_reshardable can be read by another data-parallel size only. Use the same sizes, or "
                "checkpoint.load_optim=false, or save with checkpoint.dist_ckpt_optim_fully_reshardable=true."
            )
        return True

    def _wants_rng(self) -> bool:
        if not self._resume:
            return False
        if not self._config.load_rng:
            return self._leave("random state: load_rng is off")
        keys = {self._rng_key(per_replica=False), self._rng_key(per_replica=True)}
        if keys & self._contents.objects:
            return True
        if any(key.startswith(f"{mcore.RNG_KEY}/") for key in self._contents.objects):
            return self._leave(
                "random state: stored for another parallel layout; this run goes on with its own"
            )
        return self._leave("random state: the checkpoint holds none")

    def _rerun_request(self) -> dict[str, Any]:
        here, stored = self._groups.layout(self._ctx.model), self._contents.layout
        machine = self._ctx.rerun_state_machine if self._resume else None
        request, note = rerun_request(
            machine, objects=self._contents.objects, same_layout=stored is not None and dict(stored) == here
        )
        if note is not None:
            self._leave(note)
        return request

    def _rng_key(self, *, per_replica: bool) -> str:
        return str(mcore.rng_object(None, self._groups, per_replica=per_replica).unique_key)

    def _put_back(self, loaded: dict[str, Any], *, with_optimizer: bool, exact: bool, with_rng: bool) -> None:
        ctx = self._ctx
        if with_optimizer:
            loaded["optimizer"] = fit_chain(loaded["optimizer"], mcore.parameter_groups(ctx.optimizer))
        mcore.load_model_sections(ctx.model, loaded, strict=ctx.strict and ctx.adapter_key_filter is None)
        if with_optimizer:
            ctx.optimizer.load_state_dict(loaded["optimizer"])  # type: ignore[union-attr]  # asked for, so there
        elif mcore.has_state(ctx.optimizer):
            masters.refresh(ctx.optimizer, ctx.model, loaded if exact else None)
        if self._resume and self._config.load_optim and ctx.opt_param_scheduler is not None:
            self._put_back_scheduler(loaded)
        if with_rng:
            restore_rng_state(loaded[mcore.RNG_KEY], mcore.MegatronRng())

    def _put_back_scheduler(self, loaded: Mapping[str, Any]) -> None:
        for name in ("opt_param_scheduler", "lr_scheduler"):
            if name in loaded:
                self._ctx.opt_param_scheduler.load_state_dict(loaded[name])  # type: ignore[union-attr]
                return
        self._leave("scheduler: the checkpoint holds none; it starts fresh")

    def _leave(self, note: str) -> bool:
        self._notes.append(note)
        return False
