"""Restoring a run from a selected checkpoint: compare it with the model, read it, and load the state."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from mb_checkpoint import mcore
from mb_checkpoint.collectives import gather_on_rank_zero, on_rank_zero
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointLoadContext
from mb_checkpoint.errors import CheckpointLayoutError, CheckpointReadError, DamagedWhileReadError
from mb_checkpoint.load.param_groups import (
    Policy,
    describe,
    group_changes,
    groups_of,
    reject_schedule_change,
    reject_unstored_settings,
    schedule_changes,
    unstored_settings,
)
from mb_checkpoint.load.selected_weights import is_on_host_of_one_process, read_selected
from mb_checkpoint.load.shape_check import check_shapes, merge_over_ranks, padding_note
from mb_checkpoint.load.verified_reads import IN_MODEL, Verification, VerifiedReads, verified_reads
from mb_checkpoint.megatron import main_params
from mb_checkpoint.megatron.chained_optimizer import fit_chained_state, parts_of
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.megatron.model import (
    load_model_sections,
    model_sections,
    padded_tensors,
    section_names,
    shapes_of,
)
from mb_checkpoint.megatron.optimizer import (
    SHARDING_KEY,
    distributed_parts,
    has_state,
    load_optimizer_section,
    optimizer_section,
    optimizers_without_state,
    parameter_groups,
    set_schedule,
)
from mb_checkpoint.megatron.optimizer_kinds import (
    in_form_of,
    kind_of,
    request_stored_main_params,
    stored_kind,
    stores_main_params,
    weights_of_main_params,
)
from mb_checkpoint.megatron.param_remainders import request_stored_types
from mb_checkpoint.megatron.scheduler import load_scheduler, schedule_policy, scheduler_state
from mb_checkpoint.megatron.torch_optimizer import leave_out_unstored
from mb_checkpoint.state import extra_state
from mb_checkpoint.state.adapters import apply_peft_adapter_filter_to_state_dict, reject_empty_selection
from mb_checkpoint.state.rerun_state import RERUN_KEY, rerun_request, take_over
from mb_checkpoint.state.rng import restore_rng_state

MEGATRON_VOCABULARY_DIVISOR = 128
"""Default of Megatron's make_vocab_size_divisible_by, for a state without a configuration of its model."""


class StateRestorer:
    """Load of tensors and objects: builds the request, and restores the result."""

    def __init__(
        self,
        ctx: CheckpointLoadContext,
        config: CheckpointConfig,
        groups: CheckpointGroups,
        path: Path,
        *,
        contents: mcore.CheckpointContents,
        resume: bool,
        verification: Verification | None = None,
        read: Callable[[dict[str, Any], VerifiedReads], dict[str, Any]] | None = None,
    ) -> None:
        self._ctx, self._config, self._groups, self._path = ctx, config, groups, path
        self._read = read or self._read_checkpoint
        self._resume = resume
        self._contents = contents
        self._verification = verification or Verification()
        self._notes: list[str] = []

    def run(self) -> list[str]:
        """Compare, read and restore; return notes on the state that was left unchanged. Collective.

        Whatever can reject the checkpoint comes before the read, which writes into the weights of the model.
        """
        ctx = self._ctx
        all_sections = model_sections(ctx.model, self._groups, self._contents.metadata)
        sections = self._selected_sections(all_sections)
        self._compare_shapes(sections)

        # Request: what is not in it is not read, and keeps its value.
        missing = extra_state.missing_entries(sections, self._contents) if ctx.strict else {}
        requested: dict[str, Any] = (
            extra_state.without_entries(sections, missing) if ctx.strict else self._stored_part(sections)
        )
        with_optimizer = self._wants_optimizer()
        self._compare_schedules()
        without_state = optimizers_without_state(ctx.optimizer)
        stored = self._contents.shapes or {}
        if with_optimizer:
            exact = self._converts_optimizer() and not stores_main_params(stored)
        else:
            exact = has_state(ctx.optimizer) and self._config.load_main_params_from_ckpt
        if exact:
            requested = main_params.in_float32(requested)
        elif with_optimizer and kind_of(ctx.optimizer) == "float32":
            requested = weights_of_main_params(requested, stored)
        if with_optimizer:
            requested["optimizer"] = self._optimizer_request(all_sections)
        if self._wants_rng():
            per_replica = self._rng_key(per_replica=True) in self._contents.objects
            requested[mcore.RNG_KEY] = mcore.rng_object(None, self._groups, per_replica=per_replica)
        requested |= self._rerun_request()

        empty: dict[str, Any] = {name: {} for name in sections}  # a stage without adapters reads nothing
        with self._verified_reads(without_state) as reads:
            loaded = empty | self._read(requested, reads)

        # Restore: what the read has not put in place already.
        for section, values in missing.items():
            loaded[section] |= values
        if fresh := extra_state.count_nonempty(missing):
            self._leave(f"8-bit scales: the checkpoint holds none for {fresh} modules; they start fresh")
        take_over(ctx.rerun_state_machine, loaded, requested=RERUN_KEY in requested)
        self._put_back(
            loaded, with_optimizer=with_optimizer, exact=exact, with_rng=mcore.RNG_KEY in requested
        )
        return self._notes

    def _selected_sections(self, all_sections: dict[str, Any]) -> dict[str, Any]:
        """Return the part of the weights that is loaded: with an adapter filter, what it accepts. Collective."""
        keep = self._ctx.adapter_key_filter
        if keep is None:
            return all_sections
        sections = apply_peft_adapter_filter_to_state_dict(all_sections, keep)
        accepted, total = (merge_over_ranks(shapes_of(part)) for part in (sections, all_sections))
        reject_empty_selection(keep, accepted=len(accepted), total=len(total))
        return sections

    def _compare_shapes(self, sections: Mapping[str, Any]) -> None:
        """Reject a checkpoint of a model of another shape; note another padding of the vocabulary. Collective."""
        if self._contents.shapes is None:
            return
        strict = self._ctx.strict
        model_shapes = merge_over_ranks(shapes_of(sections))
        self._verification.overwrite(model_shapes, self._contents.shapes, path=self._path)
        by_rank = gather_on_rank_zero(padded_tensors(sections))
        differing = check_shapes(
            model_shapes,
            self._contents.model_shapes,
            path=self._path,
            may_lack=not strict,
            may_have_more=not strict or self._ctx.adapter_key_filter is not None,
            padded=on_rank_zero(lambda: set[str]().union(*by_rank)),
            padding=self._vocabulary_multiple(),
        )
        if differing:
            self._leave(padding_note(model_shapes, self._contents.model_shapes, differing))

    def _vocabulary_multiple(self) -> int:
        """Return the larger of the multiples to which this run and that of the checkpoint pad the vocabulary."""
        config = getattr(self._ctx.state, "cfg", None)
        model = getattr(config, "model", None)
        divisor = getattr(model, "make_vocab_size_divisible_by", None) or MEGATRON_VOCABULARY_DIVISOR
        stored = (self._contents.layout or {}).get("tensor_model_parallel_size", 1)
        return int(divisor) * max(self._groups.tp.size(), stored)

    def _optimizer_request(self, sections: Mapping[str, Any]) -> Any:
        """Return the sharded optimizer state to read, of which a run without an update has only main parameters."""
        converts = self._converts_optimizer()
        form = {SHARDING_KEY: "fully_reshardable"} if converts else {}
        optimizer = optimizer_section(
            self._ctx.optimizer, sections, self._groups, self._contents.metadata | form, is_loading=True
        )
        if converts:
            optimizer = request_stored_main_params(optimizer, self._contents.shapes or {})
        requested = request_stored_types(optimizer, self._contents.dtypes)
        self._leave_groups_out(requested)
        if not self._contents.has_optimizer_states:
            self._leave(
                "optimizer: saved before its first update; main parameters are read, moments start at zero"
            )
            for part in parts_of(requested):
                part.get("optimizer", part)["state"].clear()
        elif isinstance(self._ctx.optimizer, Optimizer) and self._contents.dtypes:
            fresh = leave_out_unstored(requested, self._contents.dtypes)
            if fresh:
                self._leave(
                    f"optimizer: the checkpoint holds no state of {fresh} parameters; theirs starts fresh"
                )
        return requested

    def _read_checkpoint(self, requested: dict[str, Any], reads: VerifiedReads) -> dict[str, Any]:
        ctx = self._ctx
        selects_weights = ctx.adapter_key_filter is not None and ctx.optimizer is None and not self._resume
        if selects_weights and is_on_host_of_one_process(requested):
            return reads.read(lambda: read_selected(requested, self._path), after=IN_MODEL)
        return mcore.read(requested, self._path, self._groups, config=self._config, reads=reads)

    @contextmanager
    def _verified_reads(self, without_state: Sequence[Optimizer]) -> Iterator[VerifiedReads]:
        """Verify what is read in the block; if it is damaged, undo what it created: state of optimizers."""
        try:
            with verified_reads(self._path, self._verification.manifest) as reads:
                yield reads
        except (CheckpointReadError, DamagedWhileReadError):
            for optimizer in without_state:
                optimizer.state.clear()
            raise

    def _stored_part(self, sections: Mapping[str, Any]) -> dict[str, Any]:
        part = mcore.entries_in_checkpoint(sections, self._contents)
        lacking = sum(len(section) - len(part[name]) for name, section in sections.items())
        if lacking:
            self._leave(
                f"weights: the checkpoint lacks {lacking} of this rank's entries; they remain unchanged"
            )
        return part

    def _wants_optimizer(self) -> bool:
        if not self._resume or not has_state(self._ctx.optimizer):
            return False
        if not self._config.load_optim:
            return self._leave("optimizer: load_optim is off; it starts fresh")
        if not self._has_optimizer():
            return self._leave("optimizer: the checkpoint holds none; it starts fresh")
        self._reject_bound_optimizer()
        if self._converts_optimizer() and not self._contents.has_optimizer_states:
            return self._leave("optimizer: saved before its first update; it starts fresh")
        return True

    def _reject_bound_optimizer(self) -> None:
        """Reject an optimizer state that is bound to a layout or a kind of optimizer which this run does not have.

        Raises:
            CheckpointLayoutError: It is.
        """
        stored, run_layout = self._contents.layout, self._groups.layout(self._ctx.model)
        bound = self._contents.metadata.get(SHARDING_KEY) == "dp_reshardable"
        if bound and stored is not None and dict(stored) != run_layout:
            raise CheckpointLayoutError(
                f"{self._path}: its optimizer state was stored for {dict(stored)} and this run has {run_layout}; the "
                "form dp_reshardable can be read by another data-parallel size only. Use the same sizes, or "
                "checkpoint.load_optim=false, or save with checkpoint.dist_ckpt_optim_fully_reshardable=true."
            )
        kind, kind_stored = kind_of(self._ctx.optimizer), stored_kind(self._contents.common)
        if self._contents.shapes is None and None not in (kind, kind_stored) and kind != kind_stored:
            raise CheckpointLayoutError(
                f"{self._path}: its optimizer state was stored by the {kind_stored} optimizer, and this run has the "
                f"{kind} one; a local checkpoint has each rank's tensors as they were. Resume with the previous "
                "settings up to a shared checkpoint, or delete the local one to resume from an older shared one."
            )
        if bound and kind is not None and kind != "distributed":
            raise CheckpointLayoutError(
                f"{self._path}: its optimizer state was stored by the distributed optimizer, which this run does not "
                "use; only the distributed optimizer can read the form dp_reshardable. Set "
                "ddp.use_distributed_optimizer=true, or checkpoint.load_optim=false; or save with "
                "checkpoint.dist_ckpt_optim_fully_reshardable=true first."
            )

    def _converts_optimizer(self) -> bool:
        """Return whether another kind of Megatron's optimizers has stored the state."""
        kind, stored = kind_of(self._ctx.optimizer), stored_kind(self._contents.common)
        return None not in (kind, stored, self._contents.shapes) and kind != stored

    def _has_optimizer(self) -> bool:
        return self._contents.has_optimizer

    def _wants_rng(self) -> bool:
        if not self._resume:
            return False
        if not self._config.load_rng:
            return self._leave("random state: load_rng is off")
        if self._has_own_rng():
            return True
        if any(key.startswith(mcore.RNG_KEY) for key in self._contents.objects):
            return self._leave("random state: stored for another parallel layout; this run keeps its own")
        return self._leave("random state: the checkpoint holds none")

    def _rerun_request(self) -> dict[str, Any]:
        run_layout, stored = self._groups.layout(self._ctx.model), self._contents.layout
        machine = self._ctx.rerun_state_machine if self._resume else None
        request, note = rerun_request(
            machine,
            objects=self._contents.objects,
            same_layout=stored is not None and dict(stored) == run_layout,
        )
        if note is not None:
            self._leave(note)
        return request

    def _has_own_rng(self) -> bool:
        """Return whether a random state for this rank is stored: its own, or the one that its replicas share."""
        return any(
            self._rng_key(per_replica=per_replica) in self._contents.objects for per_replica in (False, True)
        )

    def _rng_key(self, *, per_replica: bool) -> str:
        return str(mcore.rng_object(None, self._groups, per_replica=per_replica).unique_key)

    def _put_back(self, loaded: dict[str, Any], *, with_optimizer: bool, exact: bool, with_rng: bool) -> None:
        ctx = self._ctx
        if with_optimizer:
            if not self._contents.has_optimizer_states:
                for part in parts_of(loaded["optimizer"]):
                    part.get("optimizer", part).setdefault("state", {})
            if self._converts_optimizer():
                loaded["optimizer"] = in_form_of(self._ctx.optimizer, loaded["optimizer"])
            loaded["optimizer"] = self._fitted(loaded["optimizer"])
        sections = self._without_code({name: loaded[name] for name in section_names(ctx.model)})
        with extra_state.permitted():
            strict = ctx.strict and ctx.adapter_key_filter is None
            load_model_sections(ctx.model, sections, strict=strict)
        if with_optimizer:
            weights = main_params.values_of(ctx.model, loaded) if exact else {}
            load_optimizer_section(ctx.optimizer, loaded["optimizer"], weights=weights)
            main_params.set_values(ctx.optimizer, weights)
        # The main parameters were copied from the weights when the optimizer was built, before these were loaded.
        elif has_state(ctx.optimizer):
            main_params.refresh(ctx.optimizer, ctx.model, loaded if exact else None)
        # After the optimizer: loading a schedule sets the rates of its parameter groups, which were just replaced.
        self._put_back_scheduler(loaded)
        # Last, so that nothing in a load draws from the restored generators.
        if with_rng:
            self._restore_rng(loaded[mcore.RNG_KEY])

    def _restore_rng(self, stored: Any) -> None:
        state = mcore.rng_of_rank(stored, self._groups)
        if state is None:
            self._leave("random state: stored for another number of replicas; this run keeps its own")
        else:
            restore_rng_state(state, mcore.MegatronRng())

    def _without_code(self, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return weights whose scales may be unpickled; note those that may not."""
        without_code, reasons = extra_state.reject_code(sections, self._path)
        if reasons:
            self._leave(
                f"8-bit scales: those of {len(reasons)} modules are not only numbers ({reasons[0]}), and reading them "
                "could execute code; they start fresh. If you trust their author, pass --trust with the folder, or set "
                "checkpoint.trust=true"
            )
        return without_code

    def _fitted(self, stored: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the optimizer state for the parameter groups of this run; note settings that change."""
        optimizer = self._ctx.optimizer
        run_groups = parameter_groups(optimizer)
        fitted = fit_chained_state(stored, run_groups, policy=self._policy() or "configured")
        groups = [groups_of(part)["param_groups"] for part in parts_of(fitted)]
        if self._policy() == "stored":
            set_schedule(optimizer, groups)
        stored_groups = [group for part in parts_of(stored) for group in groups_of(part)["param_groups"]]
        if changed := group_changes(stored_groups, [group for part in run_groups for group in part]):
            self._leave(f"optimizer: the configured values apply: {', '.join(changed)}")
        return fitted

    def _leave_groups_out(self, requested: Mapping[Any, Any]) -> None:
        """Remove parameter groups from the request if their number differs, because Megatron cannot merge them.

        They are in the common part of a checkpoint, which is read as a whole.
        """
        common = self._contents.common.get("optimizer")
        if not isinstance(common, Mapping) or distributed_parts(self._ctx.optimizer):
            return  # the distributed optimizer reads its groups as one object
        stored, run_parts = parts_of(common), parts_of(requested)
        if len(stored) != len(run_parts):
            return
        for part, run_part in zip(stored, run_parts, strict=True):
            holder = groups_of(run_part)
            groups = holder["param_groups"]
            if isinstance(groups, list) and len(groups) != len(groups_of(part)["param_groups"]):
                del holder["param_groups"]  # type: ignore[attr-defined]  # a dict of Megatron's

    def _policy(self) -> Policy | None:
        return schedule_policy(self._ctx.opt_param_scheduler)

    def _stored_schedule(self, loaded: Mapping[str, Any]) -> Mapping[str, Any] | None:
        for name in ("opt_param_scheduler", "lr_scheduler"):
            if name in loaded:
                section: Mapping[str, Any] = loaded[name]
                return section
        return None

    def _compare_schedules(self) -> None:
        """Reject a differing schedule if neither is selected, before anything is read; note the schedule that applies.

        Raises:
            CheckpointScheduleError: The schedules differ, and the configuration selects neither.
        """
        policy, stored = self._policy(), self._stored_schedule(self._contents.common)
        if policy is None or stored is None or not self._resume or not self._config.load_optim:
            return
        changes = schedule_changes(stored, scheduler_state(self._ctx.opt_param_scheduler))
        unstored = [] if policy == "configured" else unstored_settings(stored)
        if policy == "equal":
            reject_schedule_change(changes)
        elif changes:
            if policy == "stored":
                reject_unstored_settings(unstored, changes)
            self._leave(f"scheduler: the {policy} values apply: {describe(changes)}")
        if unstored:
            self._leave(
                f"scheduler: not in the checkpoint, so that the configured values apply: {', '.join(unstored)}"
            )

    def _put_back_scheduler(self, loaded: Mapping[str, Any]) -> None:
        scheduler = self._ctx.opt_param_scheduler
        if scheduler is None or not self._resume or not self._config.load_optim:
            return
        stored = self._stored_schedule(loaded)
        if stored is None:
            self._leave("scheduler: the checkpoint holds none; it starts fresh")
        else:
            load_scheduler(scheduler, stored)

    def _leave(self, note: str) -> bool:
        self._notes.append(note)
        return False
