"""What Megatron-FSDP needs switched on or off beside it."""

from __future__ import annotations

from mb_config.resolution import Resolution
from mb_config.rules.fsdp import ON

_DISTRIBUTED = ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer")
_SHARED_BUFFER = ("ddp.reuse_grad_buf_for_mxfp8_param_ag", "optimizer.reuse_grad_buf_for_mxfp8_param_ag")


def apply_fsdp(run: Resolution) -> None:
    """Make the sections fit Megatron-FSDP where `ddp` or `dist` asks for it; otherwise nothing changes.

    A value that the user set against it is a conflict, as is one of the two switches set to true and the other
    to false.
    """
    asked = [path for path in ON if run.get(path)]
    if not asked:
        return
    for path in ON:
        _need(run, path, True, rule="V170", asked=asked[0], why="the two are one switch")
    for path in _DISTRIBUTED:
        _need(run, path, True, rule="V171", asked=asked[0], why="Megatron-FSDP shards the optimizer's state")
    if run.get("optimizer.use_precision_aware_optimizer"):
        why = "the precision-aware optimizer reads its gradients beside the parameters"
        _need(run, "ddp.megatron_fsdp_use_decoupled_grad", True, rule="V172", asked=asked[0], why=why)
    if not run.get("ddp.disable_symmetric_registration"):
        why = "buffers that are registered symmetrically are summed"
        _need(run, "ddp.average_in_collective", False, rule="V173", asked=asked[0], why=why)
    for path in _SHARED_BUFFER:
        why = "Megatron-FSDP gathers through buffers of its own"
        _need(run, path, False, rule="V174", asked=asked[0], why=why)
    if run.get("ddp.nccl_ub"):
        why = "buffers of NCCL are registered in few calls"
        _need(run, "ddp.fsdp_manual_registration", True, rule="V177", asked=asked[0], why=why)


def _need(run: Resolution, path: str, value: bool, *, rule: str, asked: str, why: str) -> None:
    if run.get(path) == value:
        return
    if run.rank(path) < 2:
        run.set(path, value, rule=rule, why=why)
        return
    run.conflict(
        (path, asked),
        rule=rule,
        message=f"is {str(not value).lower()}, but {asked} is on",
        why=why,
        fix=f"Leave {path} unset, or switch Megatron-FSDP off.",
    )
