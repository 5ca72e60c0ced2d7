"""What Megatron Core's TransformerConfig refuses, as rules: known before launch, all at once, and without Megatron.

A test sets each rule's failing example before Megatron Core itself, which must refuse it, and the other, which it must
accept.
"""

from mb_models import expert_limits, graph_limits, layer_limits, precision_limits, recompute_limits
from mb_models.rule import Rule


def _kernels_there(
    rope: bool, permute: bool, fp8: str | None, fp4: str | None, engine: bool, gpu: str
) -> str | None:
    asked = {"apply_rope_fusion": rope, "moe_permute_fusion": permute, "fp8": fp8, "fp4": fp4}
    wanted = [name for name, on in asked.items() if on]
    if engine or not wanted:
        return None
    return f"{', '.join(wanted)} cannot be had on {gpu} without Transformer Engine"


RULES: tuple[Rule, ...] = (
    *recompute_limits.RULES,
    *precision_limits.RULES,
    *expert_limits.RULES,
    *layer_limits.RULES,
    *graph_limits.RULES,
)
"""Megatron Core's own conditions on the fields of a model section."""

_KERNELS = (
    "model.apply_rope_fusion",
    "model.moe_permute_fusion",
    "model.fp8",
    "model.fp4",
    "facts.transformer_engine",
    "facts.gpu",
)

KERNELS = Rule(
    id="K36",
    fields=_KERNELS,
    test=_kernels_there,
    why="these kernels are Transformer Engine's",
    fix="Install Transformer Engine, or unset them.",
    fails=dict(zip(_KERNELS, (True, False, None, None, False, "h100"), strict=True)),
    passes=dict(zip(_KERNELS, (True, False, None, None, True, "h100"), strict=True)),
)
"""A condition on the machine that is meant. Without a GPU the fusions are replaced when the model is built."""
