"""Rules on the section `rerun_state_machine`. Standard library only."""

from functools import partial

from mb_resilience.config import RerunStateMachineConfig
from mb_resilience.rule_kinds import without_effect
from mb_schema.cuda_graphs import captures_full_iteration
from mb_schema.rule_kinds import in_range, section_rule
from mb_schema.rules import Rule, rules_in

rerun_state_machine_rule = partial(section_rule, "rerun_state_machine")


@rerun_state_machine_rule(
    "R06",
    why="a step is rerun if a check rejects its loss, and no check is enabled",
    fix="Set rerun_state_machine.check_for_nan_in_loss=true, or rerun_state_machine.rerun_mode=disabled.",
    fails={"rerun_mode": "validate_results"},
    passes={"check_for_nan_in_loss": True},
)
def _no_loss_check(rerun_mode, check_for_nan_in_loss, check_for_spiky_loss):
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
def _invalid_injection(error_injection_rate, rerun_mode):
    if error_injection_rate < 0:
        return f"error_injection_rate={error_injection_rate} is not a valid number of checks"
    if error_injection_rate and rerun_mode == "disabled":
        return f"error_injection_rate={error_injection_rate} with rerun_mode=disabled"
    return None


@rerun_state_machine_rule(
    "V127",
    why="the host cannot read a value while the step is captured; the usual check reads the loss one step later",
    fix="Leave check_loss_immediately, check_for_spiky_loss and rerun_mode of the section at their defaults.",
    fails={
        "check_for_nan_in_loss": True,
        "check_loss_immediately": True,
        "model__cuda_graph_impl": "full_iteration",
    },
    passes={"check_loss_immediately": False},
)
def _loss_read_in_graph(
    check_for_nan_in_loss,
    check_for_spiky_loss,
    check_loss_immediately,
    rerun_mode,
    model__cuda_graph_impl,
    model__cuda_graph_modules,
    model__cuda_graph_scope,
):
    has_machine = rerun_mode not in (None, "disabled")
    reads_at_once = check_for_spiky_loss or (
        check_for_nan_in_loss and (check_loss_immediately or has_machine)
    )
    if not reads_at_once or not captures_full_iteration(
        model__cuda_graph_impl, model__cuda_graph_modules, model__cuda_graph_scope
    ):
        return None
    how = "by the rerun machine" if has_machine or check_for_spiky_loss else "in its microbatch"
    return f"each loss is read {how}, within a CUDA graph of the full iteration"


@rerun_state_machine_rule(
    "R15",
    why="the feature is disabled",
    fix="Set check_for_spiky_loss=true, check_for_nan_in_loss=true, or an error_injection_rate above 0; or remove "
    "these fields.",
    fails={"spiky_loss_factor": 5.0},
    passes={"check_for_spiky_loss": True},
    severity="warning",
)
def _settings_of_disabled_checks(
    spiky_loss_factor,
    check_for_spiky_loss,
    error_injection_type,
    error_injection_rate,
    check_loss_immediately,
    check_for_nan_in_loss,
):
    idle = {} if check_for_spiky_loss else {"spiky_loss_factor": spiky_loss_factor}
    if not error_injection_rate:
        idle["error_injection_type"] = error_injection_type
    if not check_for_nan_in_loss:
        idle["check_loss_immediately"] = check_loss_immediately
    return without_effect(RerunStateMachineConfig, idle)


RULES: tuple[Rule, ...] = (
    *rules_in(globals()),
    in_range(
        "R07",
        "rerun_state_machine.spiky_loss_factor",
        above=1,
        why="a loss is suspicious at this multiple of the largest of the first hundred losses, which are normal",
        fix="Set it above 1, such as 10.",
    ),
)
