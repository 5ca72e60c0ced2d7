"""All rules on the configuration sections of this package. Pure functions, standard library only.

Each section has a file of rules. `rules.py` passes the defaults of the sections to them, so that sections and rules do
not import each other.
"""

from dataclasses import fields

from mb_resilience.config import (
    FaultToleranceConfig,
    InProcessRestartConfig,
    NVRxStragglerDetectionConfig,
    RerunStateMachineConfig,
    StragglerDetectionConfig,
)
from mb_resilience.fault_tolerance.rules import ft_rules
from mb_resilience.rerun_rules import rerun_rules
from mb_resilience.restarts.rules import PATH_FIELDS as PATH_FIELDS
from mb_resilience.restarts.rules import restart_rules
from mb_resilience.rule_kinds import Defaults
from mb_resilience.stragglers.nvrx_straggler_rules import nvrx_straggler_rules
from mb_resilience.stragglers.rules import straggler_rules
from mb_schema.rules import Rule


def defaults_of(section: str, kind: type) -> Defaults:
    """Return the default of each field of a section, by its path."""
    return {f"{section}.{field.name}": field.default for field in fields(kind)}


RULES: tuple[Rule, ...] = (
    *ft_rules(defaults_of("ft", FaultToleranceConfig)),
    *straggler_rules(defaults_of("straggler", StragglerDetectionConfig)),
    *nvrx_straggler_rules(defaults_of("nvrx_straggler", NVRxStragglerDetectionConfig)),
    *restart_rules(defaults_of("inprocess_restart", InProcessRestartConfig)),
    *rerun_rules(defaults_of("rerun_state_machine", RerunStateMachineConfig)),
)
"""All rules of this package. A rule does not apply if its section is missing."""
