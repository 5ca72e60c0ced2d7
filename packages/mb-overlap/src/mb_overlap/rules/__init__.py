"""Rules on overlap that are checked before a run starts. Each rule is a function of plain values.

`conditions.py` has what a switch needs, in the section and in the model. The rules are by what is overlapped:
`tensor.py`, `pipeline.py`, `data_parallel.py`, `expert_overlap.py`, then `delayed_wgrad.py` and `embedding.py`, which
delay weight gradients; `environment.py` is about variables.
"""

from mb_overlap.rules import data_parallel as data_parallel_rules
from mb_overlap.rules import delayed_wgrad as delayed_wgrad_rules
from mb_overlap.rules import embedding as embedding_rules
from mb_overlap.rules import environment as environment_rules
from mb_overlap.rules import expert_overlap as expert_overlap_rules
from mb_overlap.rules import pipeline as pipeline_rules
from mb_overlap.rules import tensor as tensor_rules
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

CONFLICT_RULES: tuple[Rule, ...] = (*RULES, environment_rules.single_queue_under_fsdp)
"""`RULES`, and the rule that mb-config also has (O23, V176 there)."""
