"""Loading the layout of Megatron-FSDP: shards are filled in place, whatever the number of ranks that wrote them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mb_checkpoint import mcore
from mb_checkpoint.errors import CheckpointLayoutError, CheckpointShapeError, first_of
from mb_checkpoint.load.restore import StateRestorer
from mb_checkpoint.load.shape_check import check_shapes, merge_over_ranks
from mb_checkpoint.load.verified_reads import IN_MODEL
from mb_checkpoint.megatron import fsdp, main_params
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.megatron.optimizer import has_state, optimizers_without_state
from mb_checkpoint.megatron.shards import Shard, read_entries
from mb_checkpoint.state.adapters import reject_empty_selection
from mb_checkpoint.state.rerun_state import RERUN_KEY, entries_of, rebuilt
from mb_checkpoint.state.rng import restore_rng_state


def shapes_of(requested: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor that any rank requests. Collective."""
    return merge_over_ranks(
        {name: entry.shape for name, entry in requested.items() if isinstance(entry, Shard)}
    )


def compare(
    wanted: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, tuple[int, ...]],
    *,
    path: Path,
    may_lack: bool,
    may_have_more: bool,
) -> None:
    """Compare the weights that all ranks request with those that are stored.

    Raises:
        CheckpointShapeError: See `check_shapes`; or there is no common tensor.
    """
    check_shapes(wanted, stored, path=path, may_lack=may_lack, may_have_more=may_have_more)
    if wanted.keys().isdisjoint(stored):
        raise CheckpointShapeError(
            f"{path}: holds none of this model's tensors, such as {shown(wanted)}; it has {shown(stored)}. Load "
            "another checkpoint."
        )


def shown(names: Iterable[str]) -> str:
    """Return the first of some names, and the number of others."""
    return first_of(sorted(names), ", ")


def reject_fused_layer_resharding(
    path: Path, model: Sequence[Any], groups: CheckpointGroups, contents: mcore.CheckpointContents
) -> None:
    """Reject another tensor-parallel size for layers that are stored as that size splits them.

    Raises:
        CheckpointLayoutError: The model has such a layer, and the sizes differ.
    """
    stored_tp = (contents.layout or {}).get("tensor_model_parallel_size", groups.tp.size())
    if stored_tp != groups.tp.size() and fsdp.fused_layers(model):
        raise CheckpointLayoutError(
            f"{path}: was stored by {stored_tp} tensor-parallel ranks and this run has {groups.tp.size()}, because the "
            f"layout {fsdp.FORMAT} keeps joined projections of state-space layers as those ranks had them. Use the "
            "same tensor-parallel size."
        )


class ShardRestorer(StateRestorer):
    """Load of shards: builds the request, and restores the result."""

    def run(self) -> list[str]:
        """Compare, read in place and restore; return notes on the state that was left unchanged. Collective."""
        ctx, contents = self._ctx, self._contents
        reject_fused_layer_resharding(self._path, ctx.model, self._groups, contents)
        with_optimizer = self._wants_optimizer()
        without_state = optimizers_without_state(ctx.optimizer)
        self._compare_schedules()
        stored = contents.shapes or {} if with_optimizer else contents.model_shapes
        requested = self._request(with_optimizer=with_optimizer)
        if with_optimizer:
            fsdp.drop_state_not_stored(ctx.model, ctx.optimizer, stored)
        names_stored = {**(contents.shapes or {}), **dict.fromkeys(contents.objects)}
        wanted = {
            name: entry if isinstance(entry, Shard) else None
            for name, entry in requested.items()
            if name in names_stored
        }
        random = [self._rng_name()] if self._wants_rng() else []
        reruns = self._rerun_request().get(RERUN_KEY, {})
        wanted |= dict.fromkeys([*random, *entries_of(reruns)])
        with self._verified_reads(without_state) as reads:
            loaded = reads.read(lambda: read_entries(self._path, wanted), after=IN_MODEL)
        self._apply_loaded(loaded, with_optimizer=with_optimizer)
        if reruns and ctx.rerun_state_machine is not None:
            ctx.rerun_state_machine.load_state_dict(rebuilt(reruns, loaded))
        for name in random:
            restore_rng_state(loaded[name], mcore.MegatronRng())
        return self._notes

    def _request(self, *, with_optimizer: bool) -> dict[str, Any]:
        """Return the entries to request. The optimizer state is created only if the weights match. Collective."""
        ctx, contents = self._ctx, self._contents
        strict = ctx.strict and self._config.strict_fsdp_dtensor_load
        filtered = ctx.adapter_key_filter is not None
        may = {"may_lack": not strict, "may_have_more": not strict or filtered}
        requested: dict[str, Any] = dict(fsdp.weights(ctx.model, self._groups, keep=ctx.adapter_key_filter))
        model_shapes, stored = shapes_of(requested), contents.model_shapes
        if filtered:
            total = shapes_of(dict(fsdp.weights(ctx.model, self._groups, keep=None)))
            reject_empty_selection(ctx.adapter_key_filter, accepted=len(model_shapes), total=len(total))
        compare(model_shapes, stored, path=self._path, **may)
        if with_optimizer:
            of_optimizer = {
                name: shape for name, shape in (contents.shapes or {}).items() if name not in stored
            }
            entries = self._optimizer_entries(of_optimizer, **may)
            requested, stored = requested | entries, stored | of_optimizer
            model_shapes |= shapes_of(entries)
        self._verification.overwrite(model_shapes, stored, path=self._path)
        if lacking := model_shapes.keys() - stored.keys():
            self._leave(f"tensors: the checkpoint lacks {shown(lacking)}; they remain unchanged")
        if not filtered and (more := stored.keys() - model_shapes.keys()):
            self._leave(f"tensors: the checkpoint also holds {shown(more)}; left out")
        return requested

    def _optimizer_entries(
        self, stored: Mapping[str, tuple[int, ...]], *, may_lack: bool, may_have_more: bool
    ) -> dict[str, Any]:
        """Return the optimizer entries to request; creates missing optimizer state. Collective.

        Raises:
            CheckpointShapeError: See `check_shapes`; the created state is removed again.
        """
        ctx = self._ctx
        # Else the run was saved before its first step.
        stepped = any(name.startswith(fsdp.STATE_PREFIX) for name in stored)
        optimizer_parts = fsdp.make_state(ctx.model, ctx.optimizer) if stepped else []
        entries = fsdp.optimizer_entries(ctx.model, ctx.optimizer)
        state_shapes = shapes_of(entries)
        try:
            check_shapes(
                state_shapes, stored, path=self._path, may_lack=may_lack, may_have_more=may_have_more
            )
        except CheckpointShapeError:
            for part in optimizer_parts:
                part.optimizer.state.clear()
            raise
        return entries

    def _apply_loaded(self, loaded: Mapping[str, Any], *, with_optimizer: bool) -> None:
        """Restore what is not a tensor, and update model and optimizer from the data that was read into them."""
        ctx = self._ctx
        if with_optimizer:
            changed = fsdp.restore_settings(
                ctx.model, ctx.optimizer, loaded, policy=self._policy() or "configured"
            )
            if changed:
                self._leave(f"optimizer: the configured values apply: {', '.join(changed)}")
        fsdp.install_weights(ctx.model)
        if not fsdp.is_wrapped(ctx.model) and has_state(ctx.optimizer):
            main_params.refresh(ctx.optimizer, ctx.model, None)
            if self._config.load_main_params_from_ckpt:
                self._leave(
                    "main parameters: copied from the model's weights; only torch_dist supports the stored values"
                )
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

    def _has_own_rng(self) -> bool:
        run_layout, stored = self._groups.layout(self._ctx.model), self._contents.layout
        return (stored is None or dict(stored) == run_layout) and self._rng_count() in (
            1,
            self._groups.dp_cp.size(),
        )

    def _rng_count(self) -> int:
        prefix = rng_name(self._groups, "")
        return sum(name.startswith(prefix) for name in self._contents.objects)

    def _rng_name(self) -> str:
        return rng_name(self._groups, self._groups.dp_cp.rank() if self._rng_count() > 1 else 0)


def rng_name(groups: CheckpointGroups, replica: int | str) -> str:
    """Return the name of a random state, by pipeline and tensor rank and replica."""
    return f"{mcore.RNG_KEY}.({groups.pp.rank()}, {groups.tp.rank()}).{replica}"
