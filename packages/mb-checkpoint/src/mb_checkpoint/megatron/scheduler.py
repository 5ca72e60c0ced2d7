"""State of Megatron's learning-rate scheduler, with the settings that its own state lacks."""

from collections.abc import Mapping
from typing import Any

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from mb_checkpoint.load.param_groups import NOT_IN_MEGATRON_STATE, Policy, is_rounded


def schedule_policy(scheduler: Any | None) -> Policy | None:
    """Return the schedule to apply after a load, by the flags of Megatron's scheduler; None for another scheduler."""
    if not isinstance(scheduler, OptimizerParamScheduler):
        return None
    if scheduler.override_opt_param_scheduler:
        return "configured"
    return "stored" if scheduler.use_checkpoint_opt_param_scheduler else "equal"


def scheduler_state(scheduler: Any) -> dict[str, Any]:
    """Return the state of a scheduler; for Megatron's, with the settings that its `state_dict` omits."""
    state: dict[str, Any] = scheduler.state_dict()
    if schedule_policy(scheduler) is None:
        return state
    return {**state, **{name: getattr(scheduler, name) for name in NOT_IN_MEGATRON_STATE}}


def load_scheduler(scheduler: Any, stored: Mapping[str, Any]) -> None:
    """Restore a scheduler, and the learning rates and weight decays that follow from it."""
    policy = schedule_policy(scheduler)
    if policy is not None:
        scheduler.num_steps = 0  # Megatron adds the stored number
    if policy == "stored":
        for name in NOT_IN_MEGATRON_STATE & stored.keys():
            setattr(scheduler, name, stored[name])
    warmup = stored.get("lr_warmup_steps")
    if policy == "equal" and is_rounded(warmup, scheduler.lr_warmup_steps):
        scheduler.lr_warmup_steps = warmup  # saved by a version that rounded: keep that schedule
    scheduler.load_state_dict(dict(stored))
    if policy is not None:
        scheduler.step(increment=0)  # Megatron restores the weight decay after it has set the groups
