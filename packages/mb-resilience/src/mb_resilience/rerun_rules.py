"""Rules on the section `rerun_state_machine`. Standard library only."""

from mb_resilience.rule_kinds import Defaults, without_effect
from mb_schema.cuda_graphs import GRAPH_FIELDS, captures_full_iteration
from mb_schema.rule_kinds import rule, within
from mb_schema.rules import Rule


def _has_loss_check(mode: str, finite: bool, spiky: bool) -> str | None:
    if mode == "disabled" or finite or spiky:
        return None
    return f"rerun_mode={mode} with check_for_nan_in_loss=false and check_for_spiky_loss=false"


def _injection_valid(rate: int, mode: str) -> str | None:
    if rate < 0:
        return f"error_injection_rate={rate} is not a valid number of checks"
    return f"error_injection_rate={rate} with rerun_mode=disabled" if rate and mode == "disabled" else None


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
    rule(
        "R06",
        within("rerun_state_machine", "rerun_mode check_for_nan_in_loss check_for_spiky_loss"),
        _has_loss_check,
        why="a step is rerun if a check rejects its loss, and no check is enabled",
        fix="Set rerun_state_machine.check_for_nan_in_loss=true, or rerun_state_machine.rerun_mode=disabled.",
        fails=("validate_results", False, False),
        passes=("validate_results", True, False),
    ),
    rule(
        "R07",
        "rerun_state_machine.spiky_loss_factor",
        lambda factor: None if factor > 1 else f"spiky_loss_factor={factor} is not above 1",
        why="a loss is suspicious at this multiple of the largest of the first hundred losses, which are normal",
        fix="Set it above 1, such as 10.",
        fails=(0.5,),
        passes=(10.0,),
    ),
    rule(
        "R08",
        within("rerun_state_machine", "error_injection_rate rerun_mode"),
        _injection_valid,
        why="injected results test the state machine, which injects none while it is disabled",
        fix="Set rerun_state_machine.rerun_mode=validate_results, or the rate to 0.",
        fails=(1000, "disabled"),
        passes=(1000, "validate_results"),
    ),
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
