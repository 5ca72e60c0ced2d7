"""Rules on the section `rerun_state_machine`. Standard library only."""

from functools import partial

from mb_resilience.rule_kinds import Defaults, without_effect
from mb_schema.cuda_graphs import GRAPH_FIELDS, captures_full_iteration
from mb_schema.rule_kinds import rule, section_rule, within
from mb_schema.rules import Rule

rerun_state_machine_rule = partial(section_rule, "rerun_state_machine")


@rerun_state_machine_rule(
    "R06",
    why="a step is rerun if a check rejects its loss, and no check is enabled",
    fix="Set rerun_state_machine.check_for_nan_in_loss=true, or rerun_state_machine.rerun_mode=disabled.",
    fails={"rerun_mode": "validate_results"},
    passes={"check_for_nan_in_loss": True},
)
def _has_loss_check(rerun_mode, check_for_nan_in_loss, check_for_spiky_loss):
    if rerun_mode == "disabled" or check_for_nan_in_loss or check_for_spiky_loss:
        return None
    return f"rerun_mode={rerun_mode} with check_for_nan_in_loss=false and check_for_spiky_loss=false"


@rerun_state_machine_rule(
    "R08",
    why="injected results test the state machine, which injects none while it is disabled",
    fix="Set rerun_state_machine.rerun_mode=validate_results, or the rate to 0.",
    fails={"error_injection_rate": 1000, "rerun_mode": "disabled"},
    passes={"rerun_mode": "validate_results"},
)
def _injection_valid(error_injection_rate, rerun_mode):
    if error_injection_rate < 0:
        return f"error_injection_rate={error_injection_rate} is not a valid number of checks"
    if error_injection_rate and rerun_mode == "disabled":
        return f"error_injection_rate={error_injection_rate} with rerun_mode=disabled"
    return None


_CHECKS = "check_for_nan_in_loss check_for_spiky_loss check_loss_immediately rerun_mode"


def _loss_read_in_graph(
    nan: bool | None, spiky: bool | None, immediately: bool | None, mode: str | None, *graph: object
) -> str | None:
    machine = mode not in (None, "disabled")
    at_once = spiky or (nan and (immediately or machine))
    if not at_once or not captures_full_iteration(*graph):
        return None
    how = "by the rerun machine" if machine or spiky else "in its microbatch"
    return f"each loss is read {how}, within a CUDA graph of the full iteration"


_RULES = (
    _has_loss_check,
    rerun_state_machine_rule(
        "R07",
        why="a loss is suspicious at this multiple of the largest of the first hundred losses, which are normal",
        fix="Set it above 1, such as 10.",
        fails={"spiky_loss_factor": 0.5},
        passes={"spiky_loss_factor": 10.0},
    )(
        lambda spiky_loss_factor: (
            None if spiky_loss_factor > 1 else f"spiky_loss_factor={spiky_loss_factor} is not above 1"
        )
    ),
    _injection_valid,
    rule(
        "V127",
        (*within("rerun_state_machine", _CHECKS), *GRAPH_FIELDS),
        _loss_read_in_graph,
        why="the host cannot read a value while the step is captured; the usual check reads the loss one step later",
        fix="Leave check_loss_immediately, check_for_spiky_loss and rerun_mode of the section at their defaults.",
        fails=(True, False, True, "disabled", "full_iteration"),
        passes=(True, False, False, "disabled", "full_iteration"),
    ),
)


def _unused_settings(defaults: Defaults) -> Rule:
    """Return a rule that warns about settings of disabled checks."""

    def test(factor: float, spiky: bool, kind: str, rate: int, immediately: bool, finite: bool) -> str | None:
        idle = []
        if not spiky and factor != defaults["rerun_state_machine.spiky_loss_factor"]:
            idle.append(f"spiky_loss_factor={factor}")
        if not rate and kind != defaults["rerun_state_machine.error_injection_type"]:
            idle.append(f"error_injection_type={kind}")
        if immediately and not finite:
            idle.append("check_loss_immediately=true")
        return without_effect(idle)

    return rule(
        "R15",
        within(
            "rerun_state_machine",
            "spiky_loss_factor check_for_spiky_loss error_injection_type error_injection_rate check_loss_immediately "
            "check_for_nan_in_loss",
        ),
        test,
        why="the feature is disabled",
        fix="Set check_for_spiky_loss=true, check_for_nan_in_loss=true, or an error_injection_rate above 0; or remove "
        "these fields.",
        fails=(5.0, False, "transient_error", 0, False, True),
        passes=(5.0, True, "transient_error", 0, False, True),
        severity="warning",
    )


def rerun_rules(defaults: Defaults) -> tuple[Rule, ...]:
    """Return the rules on the section."""
    return (*_RULES, _unused_settings(defaults))
