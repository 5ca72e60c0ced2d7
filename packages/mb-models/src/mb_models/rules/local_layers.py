"""Rules on settings that Megatron Core's local layers lack."""

from mb_schema.rule_kinds import model_rule
from mb_schema.rules import Rule, rules_in

IGNORED_BY_LOCAL_LAYERS = (
    "qk_l2_norm",
    "qk_clip",
    "log_max_attention_logit",
    "fused_residual_rmsnorm",
)
"""Switches of the section `model` that only Transformer Engine's layers support."""


@model_rule(
    "G06",
    others=IGNORED_BY_LOCAL_LAYERS,
    why="only Transformer Engine supports them, and Megatron builds the model as if they were off",
    fix='Switch them off, or use transformer_impl "transformer_engine" on a GPU.',
    fails={"transformer_impl": "local", "qk_clip": True},
    passes={"transformer_impl": "transformer_engine"},
)
def _switches_ignored_by_local_layers(transformer_impl, **switches):
    ignored = [name for name, on in switches.items() if on]
    if transformer_impl != "local" or not ignored:
        return None
    return f"local layers ignore {', '.join(ignored)}"


@model_rule(
    "G07",
    why="8-bit and 4-bit arithmetic needs Transformer Engine",
    fix='Unset fp8 and fp4, or use transformer_impl "transformer_engine" on a GPU.',
    fails={"transformer_impl": "local", "fp8": "hybrid"},
    passes={"fp8": None},
)
def _eight_or_four_bits_in_local_layers(transformer_impl, fp8, fp4):
    if transformer_impl == "local" and (fp8 or fp4):
        return f"local layers cannot compute in fp8={fp8}, fp4={fp4}"
    return None


@model_rule(
    "G08",
    why="their linear layers only accept inputs of the parameters' type",
    fix="Switch fp32_residual_connection off.",
    fails={"transformer_impl": "local", "fp32_residual_connection": True, "bf16": True, "fp16": False},
    passes={"bf16": False},
)
def _float32_residual_in_local_layers(transformer_impl, fp32_residual_connection, bf16, fp16):
    if transformer_impl != "local" or not fp32_residual_connection or not (bf16 or fp16):
        return None
    return f"local layers cannot keep a float32 residual stream (bf16={bf16}, fp16={fp16})"


RULES: tuple[Rule, ...] = rules_in(globals())
