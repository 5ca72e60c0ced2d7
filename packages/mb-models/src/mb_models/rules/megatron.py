"""Megatron Core's own conditions on TransformerConfig, as rules: checked before launch, all at once, without Megatron.

A test passes each rule's failing example to Megatron Core, which must reject it, and the passing example, which it must
accept.
"""

from mb_models.rules import cuda_graphs as cuda_graph_rules
from mb_models.rules import layers as layer_rules
from mb_models.rules import moe as moe_rules
from mb_models.rules import precision as precision_rules
from mb_models.rules import recompute as recompute_rules
from mb_schema.rules import Rule

RULES: tuple[Rule, ...] = (
    *recompute_rules.RULES,
    *precision_rules.RULES,
    *moe_rules.RULES,
    *layer_rules.RULES,
    *cuda_graph_rules.RULES,
)
"""Megatron Core's own conditions on the fields of a model section."""
