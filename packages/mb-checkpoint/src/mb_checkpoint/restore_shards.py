"""Loading the layout of Megatron-FSDP: shards are filled in place, whatever the number of ranks that wrote them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mb_checkpoint import fsdp, masters, mcore
from mb_checkpoint.agreement import RanksFailedError, on_every_rank
from mb_checkpoint.errors import CheckpointLayoutError, CheckpointShapeError
from mb_checkpoint.reruns import RERUN_KEY, entries_of, rebuilt
from mb_checkpoint.restore import Restore, check_shapes, of_all_ranks
from mb_checkpoint.rng import restore_rng_state
from mb_checkpoint.shards import Shard, read_entries, read_index
from mb_checkpoint.sources import SHOWN

COMMON = (
    "checkpoint_version",
    "iteration",
    mcore.EXACT_FLOPS,
    "parallel_layout",
    "content_metadata",
    "opt_param_scheduler",
)
"""Objects that are the same on all ranks."""


def contents_of_shards(path: Path) -> mcore.Contents:
    """Read what a checkpoint in this layout holds. Every rank reads the files by itself."""
    index = read_index(path)
    common = read_entries(path, {name: None for name in COMMON if name in index.objects})
    return mcore.Contents(common=common, shapes=index.shapes, objects=index.objects)


def load_shards(path: Path, model: Sequence[Any], groups: mcore.Groups, *, strict: bool) -> None:
    """Load weights alone, into a model in Megatron-FSDP or a whole one. Collective; raises as `load_model_weights`."""
    contents = contents_of_shards(path)
    refuse_other_cuts(path, model, groups, contents)
    asked = fsdp.weights(model, groups)
    compare(asked, contents.model_shapes, path=path, strict=strict)
    read_on_all(path, {name: shard for name, shard in asked.items() if name in contents.model_shapes})
    fsdp.take_over(model)


def read_on_all(path: Path, asked: Mapping[str, Shard | None]) -> dict[str, Any]:
    """Read as `read_entries`; where a rank cannot, raise on all, as the others would wait for it. Collective.

    Raises:
        RanksFailedError: A rank could not read; what has been read is in the blocks.
    """
    found: dict[str, Any] = {}
    try:
        on_every_rank(lambda: found.update(read_entries(path, asked)))
    except RanksFailedError as error:
        raise RanksFailedError(
            f"{path}: could not be read ({error}), and some of it is in the model already. Look at it with "
            "verify_checkpoint, or load another checkpoint."
        ) from error
    return found


def compare(
    asked: Mapping[str, Any], stored: Mapping[str, tuple[int, ...]], *, path: Path, strict: bool
) -> list[str]:
    """Compare what all ranks ask for with what is stored; return notes on what only one side has. Collective.

    Raises:
        CheckpointShapeError: A tensor has another shape, or nothing is in common; with `strict`, only one side has it.
    """
    own = {name: entry.shape for name, entry in asked.items() if isinstance(entry, Shard)}
    check_shapes(own, stored, path=path, may_lack=not strict, may_have_more=not strict)
    wanted = of_all_ranks(own)
    if wanted.keys().isdisjoint(stored):
        raise CheckpointShapeError(
            f"{path}: holds none of this model's tensors, such as {shown(wanted)}; it has {shown(stored)}. Load "
            "another checkpoint."
        )
    notes = []
    for less, more, says in (
        (stored, wanted, "the checkpoint lacks {}; they stay as they are"),
        (wanted, stored, "the checkpoint also holds {}; left out"),
    ):
        names = more.keys() - less.keys()
        if names:
            notes.append(f"tensors: {says.format(shown(names))}")
    return notes


def shown(names: Iterable[str]) -> str:
    """Return the first of some names, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


def refuse_other_cuts(
    path: Path, model: Sequence[Any], groups: mcore.Groups, contents: mcore.Contents
) -> None:
    """Refuse another tensor-parallel size where layers are stored as that size cuts them.

    Raises:
        CheckpointLayoutError: Such a layer is in the model, and the sizes differ.
    """
    there = (contents.layout or {}).get("tensor_model_parallel_size", groups.tp.size())
    if there != groups.tp.size() and fsdp.fused_layers(model):
        raise CheckpointLayoutError(
            f"{path}: was stored by {there} tensor-parallel ranks and this run has {groups.tp.size()}, because the "
            f"layout {fsdp.FORMAT} keeps joined projections of state-space layers as those ranks had them. Use the "
            "same tensor-parallel size."
        )


class RestoreShards(Restore):
    """One load of shards: what to ask for, and where to put what comes back."""

    def run(self) -> list[str]:
        """Compare, read in place, put back; return the notes on what was left. Collective."""
        ctx, contents = self._ctx, self._contents
        refuse_other_cuts(self._path, ctx.model, self._groups, contents)
        with_optimizer = self._wants_optimizer()
        asked: dict[str, Any] = dict(fsdp.weights(ctx.model, self._groups, keep=ctx.adapter_key_filter))
        if with_optimizer:
            if any(
                name.startswith(fsdp.STATE) for name in contents.shapes or ()
            ):  # else no step was made before
                fsdp.make_state(ctx.model, ctx.optimizer)
            asked |= fsdp.optimizer_entries(ctx.model, ctx.optimizer)
        stored = contents.shapes or {} if with_optimizer else contents.model_shapes
        strict = ctx.strict and self._config.strict_fsdp_dtensor_load
        self._notes += compare(asked, stored, path=self._path, strict=strict)
        if with_optimizer:
            fsdp.forget_state(ctx.model, ctx.optimizer, stored)
        known = {**(contents.shapes or {}), **dict.fromkeys(contents.objects)}
        wanted = {
            name: entry if isinstance(entry, Shard) else None
            for name, entry in asked.items()
            if name in known
        }
        random = [self._rng_name()] if self._wants_rng() else []
        reruns = self._rerun_request().get(RERUN_KEY, {})
        wanted |= dict.fromkeys([*random, *entries_of(reruns)])
        loaded = read_on_all(self._path, wanted)
        self._settle(loaded, with_optimizer=with_optimizer)
        if reruns and ctx.rerun_state_machine is not None:
            ctx.rerun_state_machine.load_state_dict(rebuilt(reruns, loaded))
        for name in random:
            restore_rng_state(loaded[name], mcore.MegatronRng())
        return self._notes

    def _settle(self, loaded: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Put back what is no tensor, and have model and optimizer follow what was read into them."""
        ctx = self._ctx
        if with_optimizer:
            fsdp.put_back_settings(ctx.model, ctx.optimizer, loaded)
        fsdp.take_over(ctx.model)
        if not fsdp.is_wrapped(ctx.model) and mcore.has_state(ctx.optimizer):
            masters.refresh(ctx.optimizer, ctx.model, None)
            if self._config.load_main_params_from_ckpt:
                self._leave(
                    "master weights: taken from the model's weights, as only torch_dist is read otherwise"
                )
        if self._resume and self._config.load_optim and ctx.opt_param_scheduler is not None:
            self._put_back_scheduler(self._contents.common)

    def _wants_optimizer(self) -> bool:
        wants = super()._wants_optimizer()
        if wants and not fsdp.is_wrapped(self._ctx.model):
            raise CheckpointLayoutError(
                f"{self._path}: is of a run under Megatron-FSDP, and this one is not, because only its weights can be "
                "read without it. Set ddp.use_megatron_fsdp=true, or take the weights: checkpoint.load_optim=false, or "
                "checkpoint.finetune=true."
            )
        return wants

    def _wants_rng(self) -> bool:
        if not self._resume:
            return False
        if not self._config.load_rng:
            return self._leave("random state: load_rng is off")
        if self._has_own_rng():
            return True
        if any(name.startswith(f"{mcore.RNG_KEY}.") for name in self._contents.objects):
            return self._leave(
                "random state: stored for another parallel layout; this run goes on with its own"
            )
        return self._leave("random state: the checkpoint holds none")

    def _has_own_rng(self) -> bool:
        """Say whether a random state of this rank is there: its own, or the one that its replicas share."""
        here, stored = self._groups.layout(self._ctx.model), self._contents.layout
        return (stored is None or dict(stored) == here) and self._rng_count() in (
            1,
            self._groups.dp_cp.size(),
        )

    def _rng_count(self) -> int:
        prefix = rng_name(self._groups, "")
        return sum(name.startswith(prefix) for name in self._contents.objects)

    def _rng_name(self) -> str:
        return rng_name(self._groups, self._groups.dp_cp.rank() if self._rng_count() > 1 else 0)


def rng_name(groups: mcore.Groups, replica: int | str) -> str:
    """Return the name of a random state: by pipeline and tensor rank, and replica."""
    return f"{mcore.RNG_KEY}.({groups.pp.rank()}, {groups.tp.rank()}).{replica}"
