"""Rules on settings that Megatron Core's local layers lack."""

from mb_schema.rule_kinds import rule, within
from mb_schema.rules import Rule

IGNORED_BY_LOCAL_LAYERS = (
    "qk_l2_norm",
    "qk_clip",
    "log_max_attention_logit",
    "fused_residual_rmsnorm",
    "moe_grouped_gemm",
)
"""Switches that only Transformer Engine's layers support."""


def _switches_ignored_by_local_layers(impl: str, *switches: bool) -> str | None:
    ignored = [name for name, on in zip(IGNORED_BY_LOCAL_LAYERS, switches, strict=True) if on]
    if impl != "local" or not ignored:
        return None
    return f"local layers ignore {', '.join(ignored)}"


def _eight_or_four_bits_in_local_layers(impl: str, fp8: str | None, fp4: str | None) -> str | None:
    return (
        f"local layers cannot compute in fp8={fp8}, fp4={fp4}" if impl == "local" and (fp8 or fp4) else None
    )


def _float32_residual_in_local_layers(impl: str, fp32_residual: bool, bf16: bool, fp16: bool) -> str | None:
    if impl != "local" or not fp32_residual or not (bf16 or fp16):
        return None
    return f"local layers cannot keep a float32 residual stream (bf16={bf16}, fp16={fp16})"


RULES: tuple[Rule, ...] = (
    Rule(
        id="G06",
        fields=("model.transformer_impl", *(f"model.{name}" for name in IGNORED_BY_LOCAL_LAYERS)),
        test=_switches_ignored_by_local_layers,
        why="only Transformer Engine supports them, and Megatron builds the model as if they were off",
        fix='Switch them off, or use transformer_impl "transformer_engine" on a GPU.',
        fails={
            "model.transformer_impl": "local",
            **{f"model.{name}": name == "qk_clip" for name in IGNORED_BY_LOCAL_LAYERS},
        },
        passes={
            "model.transformer_impl": "transformer_engine",
            **{f"model.{name}": name == "qk_clip" for name in IGNORED_BY_LOCAL_LAYERS},
        },
    ),
    rule(
        "G07",
        within("model", "transformer_impl fp8 fp4"),
        _eight_or_four_bits_in_local_layers,
        why="8-bit and 4-bit arithmetic needs Transformer Engine",
        fix='Unset fp8 and fp4, or use transformer_impl "transformer_engine" on a GPU.',
        fails=("local", "hybrid", None),
        passes=("local", None, None),
    ),
    rule(
        "G08",
        within("model", "transformer_impl fp32_residual_connection bf16 fp16"),
        _float32_residual_in_local_layers,
        why="their linear layers only accept inputs of the parameters' type",
        fix="Switch fp32_residual_connection off.",
        fails=("local", True, True, False),
        passes=("local", True, False, False),
    ),
)
