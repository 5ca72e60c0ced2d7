"""Rules on fused kernels, offloading and the division of layers over stages."""

from collections.abc import Mapping

from mb_models.rules.model_rule import model_rule
from mb_schema.rule_kinds import excludes, requires
from mb_schema.rules import Rule


def _no_fused_activation(on: bool, activation: str, gated: bool, bias: bool) -> str | None:
    if not on:
        return None
    if activation not in ("gelu", "silu", "quick_gelu"):
        return f"has no fused {activation}"
    if not gated and (activation == "quick_gelu" or (activation == "gelu" and not bias)):
        return f"supports {activation} only gated" + (
            "" if activation == "quick_gelu" else ", or with a bias"
        )
    return None


def _offload_without_modules(on: bool, extra: Mapping[str, object]) -> str | None:
    return "needs transformer.offload_modules" if on and not extra.get("offload_modules") else None


def _layers_with_embedding_and_loss_not_divided_by_stages(
    layers: int, pp: int, vp: int | None, embedding: bool, loss: bool
) -> str | None:
    total, parts = layers + embedding + loss, pp * (vp or 1)
    if not (embedding or loss) or parts < 1 or total % parts == 0:
        return None
    return f"{layers} layers and {embedding + loss} more cannot be divided into {parts} equal parts"


RULES: tuple[Rule, ...] = (
    model_rule(
        "K24",
        ("bias_activation_fusion", "activation_func", "gated_linear_unit", "add_bias_linear"),
        _no_fused_activation,
        why="Megatron Core has no other fused kernels",
        fix="Set bias_activation_fusion=false.",
        fails=(True, "relu", False, True),
        passes=(True, "silu", True, False),
    ),
    requires(
        "K25",
        {"model.fused_residual_rmsnorm": True},
        {"model.normalization": "RMSNorm"},
        why="the fused kernel computes RMSNorm",
        fix="Set normalization=RMSNorm, or fused_residual_rmsnorm=false.",
        fails=(True, "LayerNorm"),
        passes=(True, "RMSNorm"),
    ),
    model_rule(
        "K26",
        ("fine_grained_activation_offloading", "transformer"),
        _offload_without_modules,
        why="only listed modules are offloaded",
        fix="List modules there, such as core_attn, or set fine_grained_activation_offloading=false.",
        fails=(True, {}),
        passes=(True, {"offload_modules": ["core_attn"]}),
    ),
    model_rule(
        "K27",
        (
            "num_layers",
            "pipeline_model_parallel_size",
            "virtual_pipeline_model_parallel_size",
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
        ),
        _layers_with_embedding_and_loss_not_divided_by_stages,
        why="embedding and output layer count as one layer each, and every stage has the same number",
        fix="Change num_layers, or count both or neither.",
        fails=(4, 2, None, True, False),
        passes=(4, 2, None, True, True),
    ),
    excludes(
        "V140",
        {"model.deterministic_mode": True, "model.cross_entropy_loss_fusion": True},
        why="the order of additions in the fused loss varies",
        fix="Set model.cross_entropy_loss_fusion=false or model.deterministic_mode=false.",
        fails=(True, True),
        passes=(True, False),
    ),
    excludes(
        "V128",
        {"model.restore_modelopt_state": True, "model.gradient_accumulation_fusion": True},
        why="layers restored by ModelOpt do not support fused gradients",
        fix="Set model.gradient_accumulation_fusion=false.",
        fails=(True, True),
        passes=(True, False),
    ),
    excludes(
        "V128a",
        {"model.restore_modelopt_state": True, "checkpoint.non_persistent_ckpt_type": "local"},
        why="local checkpoints do not contain the state of ModelOpt",
        fix="Set checkpoint.non_persistent_ckpt_type=global or null.",
        fails=(True, "local"),
        passes=(True, "global"),
    ),
)
