"""Rules of all packages."""

import mb_checkpoint
import mb_config
import mb_data
import mb_launch
import mb_loop
import mb_metrics
import mb_models
import mb_overlap
import mb_plan
import mb_resilience
from mb_config import Rule

RULES_BY_PACKAGE: dict[str, tuple[Rule, ...]] = {
    "mb-config": mb_config.RULES,
    "mb-plan": mb_plan.RULES,
    "mb-models": mb_models.RULES,
    "mb-data": mb_data.RULES,
    "mb-loop": mb_loop.RULES,
    "mb-overlap": mb_overlap.RULES,
    "mb-checkpoint": mb_checkpoint.RULES,
    "mb-metrics": mb_metrics.RULES,
    "mb-resilience": mb_resilience.RULES,
    "mb-launch": mb_launch.RULES,
}
RULES = tuple(rule for rules in RULES_BY_PACKAGE.values() for rule in rules)
"""Rules of all packages."""
