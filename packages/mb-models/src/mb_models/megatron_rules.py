"""What Megatron Core's TransformerConfig refuses, as rules: known before launch, all at once, and without Megatron.

A test sets each rule's failing example before Megatron Core itself, which must refuse it, and the other, which it must
accept.
"""

from mb_models import cuda_graph_rules, layer_rules, moe_rules, precision_rules, recompute_rules
from mb_models.rule import Rule

RULES: tuple[Rule, ...] = (
    *recompute_rules.RULES,
    *precision_rules.RULES,
    *moe_rules.RULES,
    *layer_rules.RULES,
    *cuda_graph_rules.RULES,
)
"""Megatron Core's own conditions on the fields of a model section."""
