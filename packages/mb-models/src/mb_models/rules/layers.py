"""Rules on fused kernels, offloading and the division of layers over stages."""

from mb_schema.rule_kinds import excludes, model_rule, requires
from mb_schema.rules import Rule, rules_in


@model_rule(
    "K24",
    why="Megatron Core has no other fused kernels",
    fix="Set bias_activation_fusion=false.",
    fails={"bias_activation_fusion": True, "activation_func": "relu"},
    passes={"activation_func": "silu", "gated_linear_unit": True, "add_bias_linear": False},
)
def _no_fused_activation(bias_activation_fusion, activation_func, gated_linear_unit, add_bias_linear):
    if not bias_activation_fusion:
        return None
    if activation_func not in ("gelu", "silu", "quick_gelu"):
        return f"has no fused {activation_func}"
    if not gated_linear_unit and (
        activation_func == "quick_gelu" or (activation_func == "gelu" and not add_bias_linear)
    ):
        return f"supports {activation_func} only gated" + (
            "" if activation_func == "quick_gelu" else ", or with a bias"
        )
    return None


@model_rule(
    "K26",
    why="only listed modules are offloaded",
    fix="List modules there, such as core_attn, or set fine_grained_activation_offloading=false.",
    fails={"fine_grained_activation_offloading": True, "transformer": {}},
    passes={"transformer": {"offload_modules": ["core_attn"]}},
)
def _offload_without_modules(fine_grained_activation_offloading, transformer):
    if fine_grained_activation_offloading and not transformer.get("offload_modules"):
        return "needs transformer.offload_modules"
    return None


@model_rule(
    "K27",
    why="embedding and output layer count as one layer each, and every stage has the same number",
    fix="Change num_layers, or count both or neither.",
    fails={
        "num_layers": 4,
        "pp": 2,
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": False,
    },
    passes={"account_for_loss_in_pipeline_split": True},
)
def _layers_with_embedding_and_loss_not_divided_by_stages(
    num_layers, pp, vp, account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split
):
    total, parts = (
        num_layers + account_for_embedding_in_pipeline_split + account_for_loss_in_pipeline_split,
        pp * (vp or 1),
    )
    if (
        not (account_for_embedding_in_pipeline_split or account_for_loss_in_pipeline_split)
        or parts < 1
        or total % parts == 0
    ):
        return None
    return (
        f"{num_layers} layers and "
        f"{account_for_embedding_in_pipeline_split + account_for_loss_in_pipeline_split} more cannot be "
        f"divided into {parts} equal parts"
    )


RULES: tuple[Rule, ...] = (
    *rules_in(globals()),
    requires(
        "K25",
        {"model.fused_residual_rmsnorm": True},
        {"model.normalization": "RMSNorm"},
        why="the fused kernel computes RMSNorm",
        fix="Set normalization=RMSNorm, or fused_residual_rmsnorm=false.",
        fails={"model.normalization": "LayerNorm"},
    ),
    excludes(
        "V140",
        {"model.deterministic_mode": True, "model.cross_entropy_loss_fusion": True},
        why="the order of additions in the fused loss varies",
        fix="Set model.cross_entropy_loss_fusion=false or model.deterministic_mode=false.",
    ),
    excludes(
        "V128",
        {"model.restore_modelopt_state": True, "model.gradient_accumulation_fusion": True},
        why="layers restored by ModelOpt do not support fused gradients",
        fix="Set model.gradient_accumulation_fusion=false.",
    ),
    excludes(
        "V128a",
        {"model.restore_modelopt_state": True, "checkpoint.non_persistent_ckpt_type": "local"},
        why="local checkpoints do not contain the state of ModelOpt",
        fix="Set checkpoint.non_persistent_ckpt_type=global or null.",
    ),
)
