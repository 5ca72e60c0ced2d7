"""Rules on the section `straggler`. Standard library only."""

from functools import partial

from mb_resilience.config import StragglerDetectionConfig
from mb_resilience.rule_kinds import unused_while_disabled, without_effect
from mb_schema.cuda_graphs import captures_full_iteration
from mb_schema.rule_kinds import section_rule
from mb_schema.rules import Rule, rules_in

straggler_rule = partial(section_rule, "straggler")


@straggler_rule(
    "R31",
    why="rank 0 listens on the port, and each report lists at least the slowest and the fastest rank",
    fix="Set a port up to 65535 that is free on the machine of rank 0, or 0 for any free one, and at least 1 rank.",
    fails={
        "log_straggler": True,
        "straggler_ctrlr": True,
        "straggler_ctrlr_port": 70000,
        "straggler_minmax_count": 1,
    },
    passes={"straggler_ctrlr_port": 65535},
)
def _invalid_timer_settings(log_straggler, straggler_ctrlr, straggler_ctrlr_port, straggler_minmax_count):
    if log_straggler and straggler_ctrlr and not 0 <= straggler_ctrlr_port <= 65535:
        return f"straggler_ctrlr_port={straggler_ctrlr_port} is not a valid port"
    if log_straggler and straggler_minmax_count < 1:
        return f"straggler_minmax_count={straggler_minmax_count} is not a positive number of ranks"
    return None


@straggler_rule(
    "R37",
    why="only a request to rank 0 resumes a paused timer",
    fix="Set straggler.straggler_ctrlr=true, or start with the timer on.",
    fails={"log_straggler": True},
    passes={"straggler_ctrlr": True},
)
def _timer_cannot_start(
    log_straggler, straggler_ctrlr, enable_straggler_on_startup, disable_straggler_on_startup
):
    if (
        not log_straggler
        or straggler_ctrlr
        or (enable_straggler_on_startup and not disable_straggler_on_startup)
    ):
        return None
    return "the timer starts paused, and straggler_ctrlr=false leaves no way to resume it"


@straggler_rule(
    "R36",
    why="rank 0 listens for requests only if straggler_ctrlr is set",
    fix="Set straggler.straggler_ctrlr=true, or remove the port and the address.",
    fails={"log_straggler": True, "straggler_ctrlr_port": 7000},
    passes={"straggler_ctrlr": True},
)
def _address_of_closed_port(log_straggler, straggler_ctrlr, straggler_ctrlr_port, straggler_ctrlr_host):
    idle = without_effect(
        StragglerDetectionConfig,
        {"straggler_ctrlr_port": straggler_ctrlr_port, "straggler_ctrlr_host": straggler_ctrlr_host},
    )
    return f"{idle} while straggler_ctrlr=false" if log_straggler and not straggler_ctrlr and idle else None


@straggler_rule(
    "T42",
    why="the speed of a rank is the time of its forward passes, which are not called one by one",
    fix="Set straggler.log_straggler=false, or the other at its default.",
    fails={"log_straggler": True, "model__cuda_graph_impl": "full_iteration"},
    passes={"model__cuda_graph_impl": "transformer_engine"},
)
def _no_separate_forward_passes(
    log_straggler, model__cuda_graph_impl, model__cuda_graph_modules, model__overlap_moe_expert_parallel_comm
):
    in_graph = captures_full_iteration(model__cuda_graph_impl, model__cuda_graph_modules)
    reason = "the step is one CUDA graph" if in_graph else "they are computed together with backward passes"
    if log_straggler and (in_graph or model__overlap_moe_expert_parallel_comm):
        return f"is true, but {reason}"
    return None


RULES: tuple[Rule, ...] = (
    unused_while_disabled("R12", "straggler", StragglerDetectionConfig, switch="log_straggler"),
    *rules_in(globals()),
)
