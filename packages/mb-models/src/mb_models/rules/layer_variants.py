"""Rules on `mb_models.gpt.variant_fields.LayerVariantFields`."""

from mb_models.family_rules import family_rule
from mb_schema.rule_kinds import SET, among, in_range, model_rule, other_than, requires
from mb_schema.rules import Rule

NEUTRAL = {
    "norm_position": "pre",
    "residual_branches": "sequential",
    "layernorm_bias": True,
    "qk_layernorm_scope": "head",
    "rotary_base_local": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_multiplier": 1.0,
    "unpadded_vocab_size": None,
}
"""Fields of the variants, with the values that have no effect."""


EXCLUDED_BY_SOFTCAP = (
    "multi_latent_attention",
    "apply_query_key_layer_scaling",
    "fp8_dot_product_attention",
    "fp8_multi_head_attention",
    "qk_clip",
    "log_max_attention_logit",
)
"""Switches of attention kernels that attention with a soft cap does not have."""

POSITIVE = {
    "G42": "embedding_multiplier",
    "G49": "residual_multiplier",
    "G50": "logits_multiplier",
    "G51": "attn_logit_softcapping",
    "G52": "final_logit_softcapping",
}
"""Rule -> field that is positive if it is set."""


@family_rule(
    "vision_num_layers",
    "M26",
    others=NEUTRAL,
    why="the language model of a vision-language model has Megatron Core's layers",
    fix="Remove them.",
    fails={**NEUTRAL, "norm_position": "pre_and_post"},
    passes={"norm_position": "pre"},
)
def _variants_with_image_encoder(vision_num_layers, **values):
    unsupported = [f"{name}={value}" for name, value in values.items() if value != NEUTRAL[name]]
    return f"does not support {', '.join(unsupported)}" if unsupported else None


@model_rule(
    "G43",
    why="the fuser takes the norm from a linear layer of Transformer Engine that contains it",
    fix="Remove use_transformer_engine_op_fuser.",
    fails={"transformer": {"use_transformer_engine_op_fuser": True}, "norm_position": "post"},
    passes={"norm_position": "pre"},
)
def _separate_norms_under_operation_fuser(transformer, norm_position, residual_branches, layernorm_bias):
    if not (transformer or {}).get("use_transformer_engine_op_fuser"):
        return None
    separate = {
        "norm_position=post": norm_position == "post",
        "residual_branches=parallel_shared_norm": residual_branches == "parallel_shared_norm",
        "layernorm_bias=false": layernorm_bias is False,
    }
    found = [name for name, value in separate.items() if value]
    return f"use_transformer_engine_op_fuser with {' and '.join(found)}" if found else None


RULES: tuple[Rule, ...] = (
    requires(
        "G40",
        {"model.rotary_base_local": SET},
        {
            "model.window_size": SET,
            "model.position_embedding_type": among("rope", "yarn"),
            "model.multi_latent_attention": False,
        },
        why="it is the rotary base of layers with a window, which YaRN does not scale",
        fix="Set window_size, and position_embedding_type=rope or yarn, or unset rotary_base_local.",
        fails={"model.rotary_base_local": 10000},
        passes={"model.window_size": (511, 0), "model.position_embedding_type": "yarn"},
    ),
    requires(
        "G41",
        {"model.attn_logit_softcapping": SET},
        {
            "model.attention_backend": other_than("flash", "fused"),
            "model.softmax_type": "vanilla",
            **{f"model.{name}": False for name in EXCLUDED_BY_SOFTCAP},
        },
        why="no kernel of Transformer Engine caps scores, so that they are computed by unfused attention in the type "
        "of the activations",
        fix="Set attention_backend=auto and switch the others off, or unset attn_logit_softcapping.",
        fails={"model.attn_logit_softcapping": 50.0, "model.attention_backend": "flash"},
        passes={"model.attention_backend": "auto"},
    ),
    *(
        in_range(
            number,
            f"model.{name}",
            above=0,
            why="a factor of zero removes a part of the model, and a soft cap is the limit of an absolute value",
            fix="Set a positive number.",
        )
        for number, name in POSITIVE.items()
    ),
    requires(
        "G44",
        {"model.qk_layernorm_scope": "all_heads"},
        {"model.qk_layernorm": True, "model.normalization": "RMSNorm", "model.multi_latent_attention": False},
        why="it is an RMSNorm over the heads of queries, and of keys",
        fix="Set qk_layernorm=true and normalization=RMSNorm, or qk_layernorm_scope=head.",
    ),
    requires(
        "G46",
        {"model.residual_branches": other_than("sequential")},
        {
            "model.norm_position": "pre",
            "model.num_moe_experts": None,
            "model.overlap_moe_expert_parallel_comm": False,
            "model.cuda_graph_impl": "none",
        },
        why="these layers have norms before attention and a dense MLP, and are run as a whole",
        fix="Unset the others, or set residual_branches=sequential.",
        fails={"model.residual_branches": "parallel", "model.norm_position": "post"},
    ),
    requires(
        "G47",
        {"model.layernorm_bias": False},
        {"model.normalization": "LayerNorm", "model.layernorm_zero_centered_gamma": False},
        why="only a plain LayerNorm has a bias",
        fix="Set normalization=LayerNorm, or layernorm_bias=true.",
        fails={"model.normalization": "RMSNorm"},
    ),
    _separate_norms_under_operation_fuser,
    _variants_with_image_encoder,
)
"""Rules on variants of layers, embedding and logits."""
