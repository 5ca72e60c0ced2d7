"""Loading: choose a checkpoint, compare it with the model, read it, put everything back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist

from mb_checkpoint import mcore
from mb_checkpoint.agreement import gather, need_process_group, on_rank_zero
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointLoadContext, LoadedCheckpoint
from mb_checkpoint.errors import (
    CheckpointLayoutError,
    CheckpointNotFoundError,
    CheckpointShapeError,
    ManifestError,
)
from mb_checkpoint.layout import RESUMABLE, TRAIN_STATE, WEIGHTS
from mb_checkpoint.locks import reading
from mb_checkpoint.manifest import read_manifest, share_of, wrong_contents
from mb_checkpoint.rng import restore_rng_state
from mb_checkpoint.select import Selection, select_checkpoint
from mb_checkpoint.train_state import FLOPS, read_train_state

SHOWN = 5
"""Differing tensors that an error names."""


def load_checkpoint(ctx: CheckpointLoadContext, config: CheckpointConfig) -> LoadedCheckpoint:
    """Resume an interrupted run from `config.load`, else take the weights of `config.pretrained_checkpoint`.

    Resuming restores weights, optimizer, scheduler, counters and random states of each rank. What the
    configuration declines, what the checkpoint lacks and what does not fit this parallel layout is left as it
    is and named in `notes`. The counters are put into `ctx.state.train_state`; whoever computes microbatches
    reads `consumed_train_samples` there. Collective over all ranks.

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
    with sound_checkpoint(lambda rejected: find_checkpoint(config, rejected), config) as (source, chosen):
        if chosen is None:
            return LoadedCheckpoint(source="nothing", notes=("no checkpoint found: random weights, step 0",))
        return _load(ctx, config, groups, chosen, resume=source == "resumed")


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
    return LoadedCheckpoint(
        source="resumed" if resume else "weights",
        step=int(counters.get("step", 0)),
        floating_point_operations_so_far=counters.get(FLOPS, 0),
        path=chosen.path,
        passed_over=chosen.passed_over,
        notes=tuple(notes),
    )


Source = Literal["resumed", "weights", "nothing"]


@contextmanager
def sound_checkpoint(
    find: Callable[[Mapping[Path, str]], tuple[Source, Selection | None]], config: CheckpointConfig
) -> Iterator[tuple[Source, Selection | None]]:
    """Choose a checkpoint whose files hold what they held when they were written, and keep it from being deleted.

    Collective over all ranks, which share the reading. Damaged ones are passed over for older ones.

    Args:
        find: Returns what would be read, but for the folders it is told are damaged. Called on rank 0.
        config: `verify_integrity` says whether contents are compared, or sizes alone.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: Whatever `find` raises.
    """
    rejected: dict[Path, str] = {}
    while True:
        source, chosen = on_rank_zero(lambda: find(rejected))
        if chosen is None:
            yield source, None
            return
        with reading(chosen.path):
            damage = _damage(chosen.path, contents=config.verify_integrity)
            if damage is None:
                yield source, chosen
                return
        rejected[chosen.path] = damage


def _damage(path: Path, *, contents: bool) -> str | None:
    """Return what is wrong with a checkpoint, by all ranks together. Collective."""

    def look() -> list[str]:
        if not path.is_dir():
            return ["was deleted meanwhile"]
        manifest = read_manifest(path) if contents else None
        if manifest is None:
            return []
        return wrong_contents(
            path, share_of(manifest, rank=dist.get_rank(), world_size=dist.get_world_size())
        )

    try:
        own = look()
    except (ManifestError, OSError) as error:
        own = [str(error)]
    found = [line for lines in gather(own) for line in lines]
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more if found else None


def find_checkpoint(
    config: CheckpointConfig, rejected: Mapping[Path, str] | None = None
) -> tuple[Source, Selection | None]:
    """Say what a load with this configuration would read, and whether it resumes a run. Not collective.

    `rejected` are folders that are known to be damaged, with the reason.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: As `load_checkpoint`.
    """
    if config.load is not None:
        wanted = WEIGHTS if config.finetune else RESUMABLE
        chosen = select_checkpoint(config.load, step=config.ckpt_step, wanted=wanted, rejected=rejected)
        if chosen is not None:
            fresh = config.finetune or chosen.path.name == "release"
            return ("weights" if fresh else "resumed"), chosen
    if config.pretrained_checkpoint is not None:
        chosen = select_checkpoint(config.pretrained_checkpoint, wanted=WEIGHTS, rejected=rejected)
        if chosen is None:
            raise CheckpointNotFoundError(
                f"checkpoint.pretrained_checkpoint: no checkpoint in {config.pretrained_checkpoint}. Name a "
                "folder with trackers and iter_* folders, or one iter_* folder."
            )
        return "weights", chosen
    if config.exit_on_missing_checkpoint and config.load is not None:
        raise CheckpointNotFoundError(
            f"checkpoint.load: no checkpoint in {config.load}, and exit_on_missing_checkpoint forbids to start "
            "from random weights. Name another folder, or set it to false."
        )
    return "nothing", None


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
        strict: Refuse tensors that only the checkpoint or only the model has.
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
        check_shapes(sections, contents, path=chosen.path, strict=strict)
        loaded = mcore.read(dict(sections), chosen.path, groups, config=CheckpointConfig())
        mcore.load_model_sections(chunks, loaded, strict=strict)
    return chosen


def check_shapes(
    sections: Mapping[str, Any], contents: mcore.Contents, *, path: Path, strict: bool = True
) -> None:
    """Compare the weights that all ranks ask for with those that a checkpoint holds. Collective.

    Raises:
        CheckpointShapeError: A tensor has another shape, or is missing there or (when strict) here; the
            message names the first ones. Raised on every rank.
    """
    wanted: dict[str, tuple[int, ...]] = {}
    for shapes in gather(mcore.shapes_of(sections)):
        wanted |= shapes
    stored = contents.model_shapes
    lines = []
    for key in sorted(wanted.keys() | stored.keys()):
        here, there = wanted.get(key), stored.get(key)
        if here != there and (strict or (here is not None and there is not None)):
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
    ) -> None:
        self._ctx, self._config, self._groups, self._path = ctx, config, groups, path
        self._resume = resume
        self._contents = contents
        self._notes: list[str] = []

    def run(self) -> list[str]:
        ctx, metadata = self._ctx, self._contents.metadata
        sections = mcore.model_sections(ctx.model, self._groups, metadata)
        check_shapes(sections, self._contents, path=self._path, strict=ctx.strict)
        asked: dict[str, Any] = dict(sections)
        if self._wants_optimizer():
            asked["optimizer"] = mcore.optimizer_section(
                ctx.optimizer, sections, self._groups, metadata, is_loading=True
            )
        if self._wants_rng():
            per_replica = self._rng_key(per_replica=True) in self._contents.objects
            asked[mcore.RNG_KEY] = mcore.rng_object(None, self._groups, per_replica=per_replica)
        loaded = mcore.read(asked, self._path, self._groups, config=self._config)
        self._put_back(loaded, with_optimizer="optimizer" in asked, with_rng=mcore.RNG_KEY in asked)
        return self._notes

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

    def _rng_key(self, *, per_replica: bool) -> str:
        return str(mcore.rng_object(None, self._groups, per_replica=per_replica).unique_key)

    def _put_back(self, loaded: dict[str, Any], *, with_optimizer: bool, with_rng: bool) -> None:
        ctx = self._ctx
        mcore.load_model_sections(ctx.model, loaded, strict=ctx.strict)
        if with_optimizer:
            ctx.optimizer.load_state_dict(loaded["optimizer"])  # type: ignore[union-attr]  # asked for, so there
        elif mcore.has_state(ctx.optimizer):
            exact = loaded if self._config.load_main_params_from_ckpt else None
            ctx.optimizer.reload_model_params(state_dict=exact)  # type: ignore[union-attr]
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
