"""What Megatron Core's TransformerConfig refuses, as rules: known before launch, all at once, and without Megatron.

A test sets each rule's failing example before Megatron Core itself, which must refuse it, and the other, which it must
accept.
"""

from mb_models import expert_limits, graph_limits, layer_limits, precision_limits, recompute_limits
from mb_models.rule import Rule

RULES: tuple[Rule, ...] = (
    *recompute_limits.RULES,
    *precision_limits.RULES,
    *expert_limits.RULES,
    *layer_limits.RULES,
    *graph_limits.RULES,
)
"""Megatron Core's own conditions on the fields of a model section."""
