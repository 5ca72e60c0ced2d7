"""Number of steps of Adam, from which its bias correction follows, where an optimizer looks for it.

torch's Adam counts in the state of each parameter (Megatron Core stores one `common_step`), FusedAdam of Transformer
Engine and of Apex in each parameter group, and Megatron's HybridDeviceOptimizer, which steps both, needs it in the
groups. A count in the other place is an error in the best case; in the worst, the correction starts again in silence.
"""

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer
from torch.optim import Optimizer

from mb_checkpoint.load.param_groups import groups_of, with_groups
from mb_checkpoint.megatron.torch_optimizer import COMMON_STEP


def counts_steps(part: Any) -> bool:
    """Return whether an optimizer, or the one inside Megatron's, is an Adam, whose update depends on the count."""
    return "betas" in inner_optimizer(part).defaults and "eps" in inner_optimizer(part).defaults


def inner_optimizer(part: Any) -> Optimizer:
    """Return the optimizer inside one of Megatron's."""
    return part if isinstance(part, Optimizer) else part.optimizer


def stored_steps(state: Mapping[Any, Any]) -> int | None:
    """Return the number of steps in the state of one optimizer, wherever it is; None if there is none.

    The groups of an optimizer may differ: before Transformer Engine 2.20 FusedAdam did not count in a group without
    parameters on this rank.
    """
    inner, holder = state.get("optimizer", state), groups_of(state)
    values = inner.get("state") or {}
    per_parameter = [
        value["step"] for value in values.values() if isinstance(value, Mapping) and "step" in value
    ]
    common = [
        common_step for where in (values, holder) if (common_step := where.get(COMMON_STEP)) is not None
    ]
    steps = common or per_parameter or [group["step"] for group in holder["param_groups"] if "step" in group]
    return max(map(int, steps), default=None)


def with_step_counts(part: Any, state: dict[Any, Any], *, steps: int | None) -> dict[Any, Any]:
    """Return the state of one optimizer with the number of steps where `part` looks for it."""
    if not counts_steps(part):
        return state
    inner, holder = inner_optimizer(part), groups_of(state)
    per_parameter = isinstance(inner, (torch.optim.Adam, torch.optim.AdamW))
    # The distributed optimizer has no state of parameters here, and passes the count of its groups on to torch's Adam.
    in_groups = not per_parameter or "state" not in state.get("optimizer", state)
    if per_parameter and steps is None:
        steps = 0
    count = {"step": steps} if in_groups and steps is not None else {}
    groups = [
        {**{key: value for key, value in group.items() if key != "step"}, **count}
        for group in holder["param_groups"]
    ]
    return _with_state(with_groups(state, groups), None if in_groups else torch.tensor(float(steps or 0)))


def _with_state(state: dict[Any, Any], common: torch.Tensor | None) -> dict[Any, Any]:
    """Return a state whose parameters have no count, with that of all of them."""
    if "optimizer" in state:
        return {**state, "optimizer": _with_state(state["optimizer"], common)}
    if "state" not in state:
        return state
    values = {
        key: {name: item for name, item in value.items() if name != "step"}
        if isinstance(value, Mapping)
        else value
        for key, value in state["state"].items()
        if key != COMMON_STEP
    }
    held = state["param_groups"]
    if isinstance(held, Mapping):  # the optimizer of several modules keeps the count with its groups
        return {**state, "state": values, "param_groups": {**held, COMMON_STEP: common}}
    return {**state, "state": values | ({} if common is None else {COMMON_STEP: common})}


def synchronize_hybrid(part: Any) -> None:
    """Pass a loaded state on to the optimizers inside HybridDeviceOptimizer, which Megatron does for two of its forms.

    The count is moved to the groups of its optimizer on the GPU: each step copies the settings of the outer groups
    into the inner ones, and would set the count back to that of the checkpoint.
    """
    hybrid = inner_optimizer(part)
    if not isinstance(hybrid, HybridDeviceOptimizer):
        return
    hybrid._sync_hdo_state_to_sub_optimizers()
    counts = {group.pop("step") for group in hybrid.param_groups if "step" in group}
    for inner in hybrid.sub_optimizers:
        per_parameter = isinstance(inner, (torch.optim.Adam, torch.optim.AdamW))
        for group in inner.param_groups:
            group.pop("step", None)
            if counts and not per_parameter:
                group["step"] = max(counts)
