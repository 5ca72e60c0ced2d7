"""The rules on the sections that every trainer shares, one file per subject."""

from mb_config.rules import distributed, execution, inert, parallelism, precision, schedule, training
from mb_config.rules.rule import Rule

__all__ = ["RULES", "Rule"]

RULES: tuple[Rule, ...] = (
    *training.RULES,
    *parallelism.RULES,
    *schedule.RULES,
    *precision.RULES,
    *distributed.RULES,
    *execution.RULES,
    *inert.RULES,
)
