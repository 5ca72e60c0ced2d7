"""Resolution of fields that must have a certain value under Megatron-FSDP (rules V170 to V174 and V177)."""

from __future__ import annotations

from mb_config.resolve.state import Priority, ResolverState

_SWITCHES = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")
_DISTRIBUTED_OPTIMIZER = ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer")
_ALL_GATHER_IN_GRAD_BUFFER = (
    "ddp.reuse_grad_buf_for_mxfp8_param_ag",
    "optimizer.reuse_grad_buf_for_mxfp8_param_ag",
)


def resolve_fsdp(state: ResolverState) -> None:
    """Set the fields that Megatron-FSDP requires, if one of its two switches, in `ddp` and in `dist`, is true.

    The other switch becomes true, too. Different values from a recipe or a class default are overwritten; a different
    value set by the user is a conflict, also if it is the other switch.
    """
    enabled = [path for path in _SWITCHES if state.get(path)]
    if not enabled:
        return
    for path in _SWITCHES:
        _require(state, path, True, rule="V170", switch=enabled[0], why="both fields control one setting")
    for path in _DISTRIBUTED_OPTIMIZER:
        _require(
            state,
            path,
            True,
            rule="V171",
            switch=enabled[0],
            why="Megatron-FSDP shards the optimizer state",
        )
    if state.get("optimizer.use_precision_aware_optimizer"):
        why = "the precision-aware optimizer reads decoupled gradients"
        _require(state, "ddp.megatron_fsdp_use_decoupled_grad", True, rule="V172", switch=enabled[0], why=why)
    if not state.get("ddp.disable_symmetric_registration"):
        why = "collectives on symmetrically registered buffers compute sums"
        _require(state, "ddp.average_in_collective", False, rule="V173", switch=enabled[0], why=why)
    for path in _ALL_GATHER_IN_GRAD_BUFFER:
        why = "Megatron-FSDP has separate buffers for the all-gather"
        _require(state, path, False, rule="V174", switch=enabled[0], why=why)
    if state.get("ddp.nccl_ub"):
        why = "NCCL buffers are registered in few calls"
        _require(state, "ddp.fsdp_manual_registration", True, rule="V177", switch=enabled[0], why=why)


def _require(state: ResolverState, path: str, value: bool, *, rule: str, switch: str, why: str) -> None:
    """Set `path` to `value`, or record a conflict with `switch`, the field that enables Megatron-FSDP."""
    if state.get(path) == value:
        return
    if state.priority(path) < Priority.USER:
        state.set(path, value, rule=rule, why=why)
        return
    state.conflict(
        (path, switch),
        rule=rule,
        message=f"is {str(not value).lower()}, but {switch} is true",
        why=why,
        fix=f"Leave {path} unset, or disable Megatron-FSDP.",
    )
