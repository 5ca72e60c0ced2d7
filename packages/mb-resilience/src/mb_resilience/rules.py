"""All rules on the configuration sections of this package. Pure functions, standard library only.

Each section has a file of rules.
"""

from mb_resilience import rerun_rules
from mb_resilience.config import NVRxStragglerDetectionConfig
from mb_resilience.fault_tolerance import rules as ft_rules
from mb_resilience.restarts import rules as restart_rules
from mb_resilience.restarts.rules import PATH_FIELDS as PATH_FIELDS
from mb_resilience.rule_kinds import unused_while_disabled
from mb_resilience.stragglers import nvrx_straggler_rules
from mb_resilience.stragglers import rules as straggler_rules
from mb_schema.rules import Rule

RULES: tuple[Rule, ...] = (
    *ft_rules.RULES,
    *straggler_rules.RULES,
    *nvrx_straggler_rules.RULES,
    unused_while_disabled("R13", "nvrx_straggler", NVRxStragglerDetectionConfig, switch="enabled"),
    *restart_rules.RULES,
    *rerun_rules.RULES,
)
"""All rules of this package. A rule does not apply if its section is missing."""
