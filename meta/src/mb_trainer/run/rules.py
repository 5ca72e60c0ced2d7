"""Rules of all packages."""

import mb_checkpoint.rules
import mb_config
import mb_data.rules
import mb_launch.rules
import mb_loop.rules
import mb_metrics.rules
import mb_models.rules
import mb_overlap.rules
import mb_plan.rules
import mb_resilience.rules
from mb_config import RuleLike

RULES_BY_PACKAGE: dict[str, tuple[RuleLike, ...]] = {
    "mb-config": mb_config.RULES,
    "mb-plan": mb_plan.rules.RULES,
    "mb-models": mb_models.rules.RULES,
    "mb-data": mb_data.rules.RULES,
    "mb-loop": mb_loop.rules.RULES,
    "mb-overlap": mb_overlap.rules.RULES,
    "mb-checkpoint": mb_checkpoint.rules.RULES,
    "mb-metrics": mb_metrics.rules.RULES,
    "mb-resilience": mb_resilience.rules.RULES,
    "mb-launch": mb_launch.rules.RULES,
}
RULES = tuple(rule for rules in RULES_BY_PACKAGE.values() for rule in rules)
"""Rules of all packages."""
