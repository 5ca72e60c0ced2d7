"""Functions that run on a rank of `test_schedule.py`."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

import mb_guard


def scheduler(groups: Mapping[str, float] = {}, **changes: Any) -> OptimizerParamScheduler:
    """Return a schedule of 20 steps that uses stored values."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    optimizer.param_groups[0].update(max_lr=1e-3, min_lr=0.0, wd_mult=1.0, lr_mult=1.0)
    optimizer.param_groups[0].update(groups)
    settings = {
        "init_lr": 0.0,
        "max_lr": 1e-3,
        "min_lr": 0.0,
        "lr_warmup_steps": 2,
        "lr_decay_steps": 20,
        "lr_decay_style": "WSD",
        "start_wd": 0.1,
        "end_wd": 0.3,
        "wd_incr_steps": 20,
        "wd_incr_style": "linear",
        "use_checkpoint_opt_param_scheduler": True,
        "override_opt_param_scheduler": False,
        "wsd_decay_steps": 5,
        "lr_wsd_decay_style": "linear",
    }
    return OptimizerParamScheduler(optimizer, **{**settings, **changes})


def rates(each: OptimizerParamScheduler) -> list[float]:
    """Return the learning rate and weight decay that the next update uses, and the steps."""
    group = each.optimizer.param_groups[0]
    return [group["lr"], group["weight_decay"], each.num_steps]


def stored_and_loaded(changes: dict[str, Any], fault: str | None, times: int = 1) -> list[list[float]]:
    """Return the rates of a schedule after 17 steps, and of another one that loads its state."""
    with mb_guard.without(fault) if fault else nullcontext():
        stored, loaded = scheduler(), scheduler(**changes)
        stored.step(increment=17)
        for _ in range(times):
            loaded.load_state_dict(stored.state_dict())
    return [rates(stored), rates(loaded)]


def loaded_from_an_older_checkpoint() -> list[float]:
    """Return the rates after loading a state without the settings of the decay phase."""
    stored, loaded = scheduler(), scheduler()
    stored.step(increment=17)
    state = {name: value for name, value in stored.state_dict().items() if "wsd" not in name}
    loaded.load_state_dict(state)
    return rates(loaded)


def overridden(fault: str | None) -> list[list[float]]:
    """Return the rates of a new schedule after 10 steps, and of one that overrides those of a checkpoint after 10."""
    changes = {"override_opt_param_scheduler": True, "use_checkpoint_opt_param_scheduler": False}
    smaller = {"max_lr": 1e-4, "min_lr": 1e-5}
    with mb_guard.without(fault) if fault else nullcontext():
        stored = scheduler()
        stored.step(increment=10)
        new, loaded = [scheduler(**changes, **smaller, groups=smaller) for _ in range(2)]
        new.step(increment=10)
        loaded.optimizer.load_state_dict(stored.optimizer.state_dict())
        loaded.load_state_dict(stored.state_dict())
    return [rates(new), rates(loaded)]
