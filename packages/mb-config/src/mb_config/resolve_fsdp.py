"""Resolution of fields that Megatron-FSDP requires."""

from __future__ import annotations

from mb_config.resolver_state import ResolverState
from mb_config.rules.fsdp import ON

_DISTRIBUTED = ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer")
_SHARED_BUFFER = ("ddp.reuse_grad_buf_for_mxfp8_param_ag", "optimizer.reuse_grad_buf_for_mxfp8_param_ag")


def resolve_fsdp(state: ResolverState) -> None:
    """Set the fields that Megatron-FSDP requires, if `ddp` or `dist` enables it.

    A different value set by the user is a conflict. So is one of the two switches set to true and the other to false.
    """
    requested = [path for path in ON if state.get(path)]
    if not requested:
        return
    for path in ON:
        _need(state, path, True, rule="V170", requested=requested[0], why="both fields control one setting")
    for path in _DISTRIBUTED:
        _need(
            state,
            path,
            True,
            rule="V171",
            requested=requested[0],
            why="Megatron-FSDP shards the optimizer state",
        )
    if state.get("optimizer.use_precision_aware_optimizer"):
        why = "the precision-aware optimizer reads decoupled gradients"
        _need(
            state, "ddp.megatron_fsdp_use_decoupled_grad", True, rule="V172", requested=requested[0], why=why
        )
    if not state.get("ddp.disable_symmetric_registration"):
        why = "collectives on symmetrically registered buffers compute sums"
        _need(state, "ddp.average_in_collective", False, rule="V173", requested=requested[0], why=why)
    for path in _SHARED_BUFFER:
        why = "Megatron-FSDP has separate buffers for the all-gather"
        _need(state, path, False, rule="V174", requested=requested[0], why=why)
    if state.get("ddp.nccl_ub"):
        why = "NCCL buffers are registered in few calls"
        _need(state, "ddp.fsdp_manual_registration", True, rule="V177", requested=requested[0], why=why)


def _need(state: ResolverState, path: str, value: bool, *, rule: str, requested: str, why: str) -> None:
    if state.get(path) == value:
        return
    if state.priority(path) < 2:
        state.set(path, value, rule=rule, why=why)
        return
    state.conflict(
        (path, requested),
        rule=rule,
        message=f"is {str(not value).lower()}, but {requested} is true",
        why=why,
        fix=f"Leave {path} unset, or disable Megatron-FSDP.",
    )
