"""Rules on overlap that are checked before a run starts. Each rule is a function of plain values."""

from mb_overlap import (
    data_parallel_rules,
    delayed_wgrad_rules,
    embedding_rules,
    environment_rules,
    expert_overlap_rules,
    pipeline_rules,
    tensor_rules,
)
from mb_schema.rules import Rule

__all__ = ["CONFLICT_RULES", "RULES", "Rule"]

RULES: tuple[Rule, ...] = (
    *embedding_rules.RULES,
    *tensor_rules.RULES,
    *pipeline_rules.RULES,
    *expert_overlap_rules.RULES,
    *delayed_wgrad_rules.RULES,
    *data_parallel_rules.RULES,
    *environment_rules.RULES,
)
"""Every rule of the section."""

CONFLICT_RULES: tuple[Rule, ...] = (*RULES, environment_rules.FSDP_QUEUES)
"""`RULES`, and the rule that mb-config also has (O23, V176 there)."""
