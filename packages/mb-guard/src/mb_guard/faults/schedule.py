"""Faults of `OptimizerParamScheduler` when it loads a checkpoint."""

from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around

_MODULE = "megatron.core.optimizer_param_scheduler"
_WSD = ("lr_wsd_decay_style", "wsd_decay_steps")
"""Settings of a warm-up-stable-decay schedule, which Megatron's state lacks."""
_BOUNDS = ("max_lr", "min_lr", "start_wd", "end_wd")
"""Settings of a parameter group that bound its schedule."""


@around
def apply_after_all_is_restored(load_state_dict: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Write learning rate and weight decay to the groups after both schedules are restored, at the stored step."""
    self.num_steps = 0  # the original adds the stored steps
    load_state_dict(self, *args, **kwargs)
    self.step(increment=0)


@around
def store_decay_phase(state_dict: Function, self: Any) -> dict[str, Any]:
    """Store the settings of the decay phase."""
    return {**state_dict(self), **{name: getattr(self, name) for name in _WSD}}


@around
def restore_decay_phase(load_state_dict: Function, self: Any, state_dict: Any) -> None:
    """Restore the settings of the decay phase if the stored schedule applies; older checkpoints lack them."""
    if self.use_checkpoint_opt_param_scheduler and not self.override_opt_param_scheduler:
        for name in _WSD:
            setattr(self, name, state_dict.get(name, getattr(self, name)))
    load_state_dict(self, state_dict)


@around
def remember_bounds(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Remember the configured bounds of each parameter group; a load of the optimizer replaces them."""
    init(self, *args, **kwargs)
    groups = self.optimizer.param_groups
    self.configured_bounds = [{name: group[name] for name in _BOUNDS if name in group} for group in groups]


@around
def configured_bounds(load_state_dict: Function, self: Any, state_dict: Any) -> None:
    """Take the configured bounds of each parameter group where the configured schedule applies."""
    if self.override_opt_param_scheduler:
        for group, bounds in zip(self.optimizer.param_groups, self.configured_bounds, strict=True):
            group.update(bounds)
    load_state_dict(self, state_dict)


def _patch(wrap: Any, target: str, source: str) -> Patch:
    return Patch(wrap=wrap, module=_MODULE, target=f"OptimizerParamScheduler.{target}", sources=(source,))


def _stored_schedule(settings: Settings) -> bool:
    return bool(settings.use_checkpoint_opt_param_scheduler)


FAULTS = (
    Fault(
        id="wsd-schedule-not-stored",
        effect="wrong number",
        summary="The state of OptimizerParamScheduler lacks wsd_decay_steps and lr_wsd_decay_style: a resume with "
        "use_checkpoint_opt_param_scheduler mixes the stored schedule with the configured decay phase.",
        shows="Silent: half of the learning rate where lr_wsd_decay_iters is 10 instead of the stored 5.",
        action="put right",
        test="packages/mb-guard/tests/test_schedule.py::test_the_stored_decay_phase_is_restored",
        met=lambda settings: _stored_schedule(settings) and settings.lr_decay_style == "WSD",
        patches=(
            _patch(store_decay_phase, "state_dict", "cb1ebafbfb7e4f15"),
            _patch(restore_decay_phase, "load_state_dict", "f25f3bf57255b21e"),
        ),
    ),
    Fault(
        id="weight-decay-after-load",
        effect="wrong number",
        summary="OptimizerParamScheduler.load_state_dict writes the weight decay to the parameter groups before it has "
        "restored its schedule, and adds the stored steps to those that the scheduler has already made.",
        shows="Silent: the first step after a resume with use_checkpoint_opt_param_scheduler has the configured weight "
        "decay; a second load into the same scheduler doubles its steps.",
        action="put right",
        test="packages/mb-guard/tests/test_schedule.py::test_the_first_step_after_a_load_has_the_stored_weight_decay",
        report="https://github.com/NVIDIA/Megatron-LM/pull/7468",
        met=_stored_schedule,
        patches=(_patch(apply_after_all_is_restored, "load_state_dict", "f25f3bf57255b21e"),),
    ),
    Fault(
        id="overridden-schedule-keeps-stored-rates",
        effect="wrong number",
        summary="With override_opt_param_scheduler the configured learning rate has no effect after a load: the "
        "optimizer brings max_lr and min_lr of its parameter groups from the checkpoint, and the scheduler takes them "
        "from there.",
        shows="Silent; the log reports an override: 1e-3 in the checkpoint, 1e-4 configured, 1e-3 used.",
        action="put right",
        test="packages/mb-guard/tests/test_schedule.py::test_an_overridden_schedule_has_the_configured_rates",
        report="https://github.com/NVIDIA/Megatron-LM/pull/5213",
        met=lambda settings: bool(settings.override_opt_param_scheduler),
        patches=(
            _patch(remember_bounds, "__init__", "cc286991585a4f73"),
            _patch(configured_bounds, "load_state_dict", "f25f3bf57255b21e"),
        ),
    ),
)
