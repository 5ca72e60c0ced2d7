"""State of a run in the form in which its layout stores it: step 1 of a save (see save.py)."""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from mb_checkpoint import mcore
from mb_checkpoint.collectives import gather_in, highest, require_process_group
from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointSaveContext
from mb_checkpoint.formats.megatron_lm import ARGUMENTS, COUNTERS, PLAIN
from mb_checkpoint.load.restore_shards import rng_name
from mb_checkpoint.megatron import fsdp
from mb_checkpoint.megatron.groups import CheckpointGroups
from mb_checkpoint.megatron.model import model_sections, reject_empty_tensors
from mb_checkpoint.megatron.optimizer import (
    content_metadata,
    has_state,
    optimizer_section,
)
from mb_checkpoint.megatron.scheduler import scheduler_state
from mb_checkpoint.state.adapters import apply_peft_adapter_filter_to_state_dict
from mb_checkpoint.state.callback_states import callback_states
from mb_checkpoint.state.rerun_state import RERUN_KEY, entries_of, rerun_entry
from mb_checkpoint.state.rng import collect_rng_state, rng_digest
from mb_checkpoint.state.train_state import EXACT_FLOPS, FLOPS, step_in

CHECKPOINT_VERSION = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveState:
    """State of this rank at one step."""

    step: int
    counters: dict[str, Any]
    """Content of train_state.pt."""
    groups: CheckpointGroups
    metadata: dict[str, Any]
    """Layout of the content, which is stored with it."""
    entries: dict[str, Any]
    """State dict with the sharded weights and optimizer state, scheduler, random states and rerun machine."""


def collect_state(ctx: CheckpointSaveContext, config: CheckpointConfig) -> SaveState:
    """Return the state of this rank. Collective over all ranks; synchronizes with the device.

    Raises:
        CheckpointLayoutError, NotImplementedError: See `save.save_checkpoint`.
        TrainStateError: The counters have no step.
    """
    if ctx.module_name is not None:
        raise NotImplementedError(
            "checkpoint save: module_name (one module of several) is not supported. The checkpoint would lack the "
            "other modules without notice. Omit it from the context."
        )
    require_process_group()
    counters = {**ctx.state.train_state.state_dict(), FLOPS: ctx.num_floating_point_operations_so_far}
    step = step_in(counters)
    groups = CheckpointGroups.of(ctx.pg_collection)
    fsdp.reject_format_mismatch(ctx.model, config.ckpt_format)
    metadata = content_metadata(ctx.optimizer, config)
    common: dict[str, Any] = {
        "checkpoint_version": CHECKPOINT_VERSION,
        "iteration": step,
        EXACT_FLOPS: int(ctx.num_floating_point_operations_so_far),
        "parallel_layout": groups.layout(ctx.model),
    }
    if ctx.megatron_arguments is not None:
        plain = {
            name: value
            for name, value in ctx.megatron_arguments.items()
            if ({type(item) for item in value} if isinstance(value, list | tuple) else {type(value)}) <= PLAIN
        }
        common[ARGUMENTS] = Namespace(**{**plain, **{name: int(counters.get(name, 0)) for name in COUNTERS}})
    common |= callback_states(ctx.callbacks)
    if ctx.opt_param_scheduler is not None:
        common["opt_param_scheduler"] = scheduler_state(ctx.opt_param_scheduler)
    collect = _fsdp_entries if config.ckpt_format == fsdp.FORMAT else _torch_dist_entries
    entries = common | collect(ctx, config, groups, metadata)
    return SaveState(step=step, counters=counters, groups=groups, metadata=metadata, entries=entries)


def _torch_dist_entries(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    groups: CheckpointGroups,
    metadata: dict[str, Any],
) -> dict[str, Any]:
    all_sections = model_sections(ctx.model, groups, metadata)
    reject_empty_tensors(all_sections)
    keep = ctx.adapter_key_filter
    entries = all_sections if keep is None else apply_peft_adapter_filter_to_state_dict(all_sections, keep)
    entries = {**entries, **rerun_entry(ctx.rerun_state_machine)}
    if config.save_optim and has_state(ctx.optimizer):
        entries["optimizer"] = optimizer_section(
            ctx.optimizer, all_sections, groups, metadata, is_loading=False
        )
    if config.save_rng:
        state, differ = _random_state(groups)
        states = gather_in(state, groups.dp_cp) if differ else [state]
        entries[mcore.RNG_KEY] = mcore.rng_object(states, groups)
    return entries


def _fsdp_entries(
    ctx: CheckpointSaveContext,
    config: CheckpointConfig,
    groups: CheckpointGroups,
    metadata: dict[str, Any],
) -> dict[str, Any]:
    """Return the state of this rank by its names in a checkpoint of Megatron-FSDP."""
    entries: dict[str, Any] = {"content_metadata": metadata}
    entries |= fsdp.weights(ctx.model, groups, keep=ctx.adapter_key_filter)
    if config.save_optim and has_state(ctx.optimizer):
        entries |= fsdp.optimizer_entries(ctx.model, ctx.optimizer)
    if config.save_rng:
        state, differ = _random_state(groups)
        entries[rng_name(groups, groups.dp_cp.rank() if differ else 0)] = state
    return entries | entries_of(rerun_entry(ctx.rerun_state_machine).get(RERUN_KEY, {}))


def _random_state(groups: CheckpointGroups) -> tuple[dict[str, object], bool]:
    """Return the random state of this rank, and whether data-parallel replicas differ; else one of them is stored.

    Megatron-LM requires the state of a GPU. A process without one stores that of its CPU there, as Megatron-LM itself
    does when mb-host replaces CUDA.
    """
    state = collect_rng_state(mcore.MegatronRng())
    state.setdefault("cuda_rng_state", state["torch_rng_state"])
    digest = int(rng_digest(state)[:15], 16)
    count, own = groups.pp.size() * groups.tp.size(), groups.pp.rank() * groups.tp.size() + groups.tp.rank()
    # The highest digest at each position and, negative, the lowest: they differ where replicas do.
    numbers = [-(2**62)] * (2 * count)
    numbers[own], numbers[count + own] = digest, -digest
    numbers = highest(numbers)
    return state, any(
        high != -low for high, low in zip(numbers[:count], numbers[count:], strict=True) if low > -(2**62)
    )
