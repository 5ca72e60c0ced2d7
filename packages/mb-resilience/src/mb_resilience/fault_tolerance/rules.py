"""Rules on the section `ft`. Standard library only."""

from functools import partial

from mb_resilience.rule_kinds import Defaults, requires_nvrx, requires_nvrx_version, without_effect
from mb_schema.rule_kinds import requires, section_rule
from mb_schema.rules import Rule

ft_rule = partial(section_rule, "ft")

_FAULT_SETTINGS = ("ft.simulated_fault_type", "ft.simulated_fault_rank", "ft.simulated_fault_base_delay")
"""Fields that only a simulated fault reads."""


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
def _fault_valid(simulate_fault, simulated_fault_rank, simulated_fault_base_delay, *, world_size):
    if not simulate_fault:
        return None
    if simulated_fault_rank is not None and not 0 <= simulated_fault_rank < world_size:
        return f"simulated_fault_rank={simulated_fault_rank} is outside of the world size {world_size}"
    if simulated_fault_base_delay < 0:
        return f"simulated_fault_base_delay={simulated_fault_base_delay} is negative"
    return None


_VALID_FAULT = _fault_valid


_SAVES = requires(
    "V246",
    {"ft.enable_ft_package": True},
    {"checkpoint.save": True},
    why="a restarted run resumes from it and reads the measured timeouts",
    fix="Set checkpoint.save or ft.enable_ft_package=false.",
    passes={"checkpoint.save": "checkpoints"},
)


def _unused_settings(defaults: Defaults) -> Rule:
    """Return a rule that warns about settings of disabled features."""

    def test(*values: object) -> str | None:
        value_of = dict(zip(defaults, values, strict=True))
        idle = [] if value_of["ft.enable_ft_package"] else ["ft.calc_ft_timeouts"]
        idle += [] if value_of["ft.simulate_fault"] else _FAULT_SETTINGS
        changed = [
            f"{path.split('.')[1]}={value_of[path]!r}" for path in idle if value_of[path] != defaults[path]
        ]
        return without_effect(changed)

    return Rule(
        id="R23",
        fields=tuple(defaults),
        test=test,
        why="the feature is disabled",
        fix="Set ft.enable_ft_package=true for timeouts, ft.simulate_fault=true for a fault; or remove these fields.",
        severity="warning",
        fails={**defaults, "ft.calc_ft_timeouts": True},
        passes={**defaults, "ft.enable_ft_package": True, "ft.calc_ft_timeouts": True},
    )


def ft_rules(defaults: Defaults) -> tuple[Rule, ...]:
    """Return the rules on the section."""
    installed = requires_nvrx(
        "R21",
        "ft.enable_ft_package",
        why="its launcher monitors the ranks, and kills those that hang",
        fix="Install nvidia-resiliency-ext and start the job with ft_launcher, or set ft.enable_ft_package=false.",
    )
    version = requires_nvrx_version("R40", "ft.enable_ft_package")
    return (installed, version, _VALID_FAULT, _SAVES, _unused_settings(defaults))
