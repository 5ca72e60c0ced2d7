"""Resolution of fields that must have a certain value under Megatron-FSDP (rules V170 to V174 and V177)."""

from __future__ import annotations

from mb_config.resolve.state import Priority, ResolverState

_SWITCHES = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")


def resolve_fsdp(state: ResolverState) -> None:
    """Set the fields that Megatron-FSDP requires, if one of its two switches, in `ddp` and in `dist`, is true.

    The other switch becomes true, too. Different values from a recipe or a class default are overwritten; a different
    value set by the user is a conflict, also if it is the other switch.
    """
    switch = next((path for path in _SWITCHES if state.get(path)), None)
    if switch is None:
        return

    def require(rule: str, *paths: str, value: bool, why: str) -> None:
        for path in paths:
            if state.get(path) == value:
                continue
            if state.priority(path) < Priority.USER:
                state.set(path, value, rule=rule, why=why)
                continue
            state.conflict(
                (path, switch),
                rule=rule,
                message=f"is {str(not value).lower()}, but {switch} is true",
                why=why,
                fix=f"Leave {path} unset, or disable Megatron-FSDP.",
            )

    def in_both(name: str) -> tuple[str, str]:
        return f"ddp.{name}", f"optimizer.{name}"

    require("V170", *_SWITCHES, value=True, why="both fields control one setting")
    shards = "Megatron-FSDP shards the optimizer state"
    require("V171", *in_both("use_distributed_optimizer"), value=True, why=shards)
    if state.get("optimizer.use_precision_aware_optimizer"):
        why = "the precision-aware optimizer reads decoupled gradients"
        require("V172", "ddp.megatron_fsdp_use_decoupled_grad", value=True, why=why)
    if not state.get("ddp.disable_symmetric_registration"):
        why = "collectives on symmetrically registered buffers compute sums"
        require("V173", "ddp.average_in_collective", value=False, why=why)
    buffers = "Megatron-FSDP has separate buffers for the all-gather"
    require("V174", *in_both("reuse_grad_buf_for_mxfp8_param_ag"), value=False, why=buffers)
    if state.get("ddp.nccl_ub"):
        require(
            "V177", "ddp.fsdp_manual_registration", value=True, why="NCCL buffers are registered in few calls"
        )
