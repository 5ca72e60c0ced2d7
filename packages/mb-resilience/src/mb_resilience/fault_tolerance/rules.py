"""Rules on the section `ft`. Standard library only."""

from functools import partial

from mb_resilience.config import FaultToleranceConfig
from mb_resilience.rule_kinds import requires_nvrx, requires_nvrx_version, without_effect
from mb_schema.rule_kinds import requires, section_rule
from mb_schema.rules import Rule, rules_in

ft_rule = partial(section_rule, "ft")


@ft_rule(
    "R22",
    why="the fault needs an existing rank and a delay after the start",
    fix="Set an existing rank or null, and a delay of at least 0 seconds.",
    fails={
        "simulate_fault": True,
        "simulated_fault_rank": 2,
        "simulated_fault_base_delay": 0,
        "world_size": 2,
    },
    passes={"simulated_fault_rank": 1},
)
def _impossible_fault(simulate_fault, simulated_fault_rank, simulated_fault_base_delay, *, world_size):
    if not simulate_fault:
        return None
    if simulated_fault_rank is not None and not 0 <= simulated_fault_rank < world_size:
        return f"simulated_fault_rank={simulated_fault_rank} is outside of the world size {world_size}"
    if simulated_fault_base_delay < 0:
        return f"simulated_fault_base_delay={simulated_fault_base_delay} is negative"
    return None


@ft_rule(
    "R23",
    why="the feature is disabled",
    fix="Set ft.enable_ft_package=true for timeouts, ft.simulate_fault=true for a fault; or remove these fields.",
    fails={"calc_ft_timeouts": True},
    passes={"enable_ft_package": True},
    severity="warning",
)
def _settings_of_disabled_features(
    enable_ft_package,
    calc_ft_timeouts,
    simulate_fault,
    simulated_fault_type,
    simulated_fault_rank,
    simulated_fault_base_delay,
):
    idle = {} if enable_ft_package else {"calc_ft_timeouts": calc_ft_timeouts}
    if not simulate_fault:
        idle["simulated_fault_type"] = simulated_fault_type
        idle["simulated_fault_rank"] = simulated_fault_rank
        idle["simulated_fault_base_delay"] = simulated_fault_base_delay
    return without_effect(FaultToleranceConfig, idle)


RULES: tuple[Rule, ...] = (
    requires_nvrx(
        "R21",
        "ft.enable_ft_package",
        why="its launcher monitors the ranks, and kills those that hang",
        fix="Install nvidia-resiliency-ext and start the job with ft_launcher, or set ft.enable_ft_package=false.",
    ),
    requires_nvrx_version("R40", "ft.enable_ft_package"),
    *rules_in(globals()),
    requires(
        "V246",
        {"ft.enable_ft_package": True},
        {"checkpoint.save": True},
        why="a restarted run resumes from it and reads the measured timeouts",
        fix="Set checkpoint.save or ft.enable_ft_package=false.",
        passes={"checkpoint.save": "checkpoints"},
    ),
)
