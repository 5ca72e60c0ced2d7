"""Config fields that determine which weights a model has, and their shapes. Standard library only."""

from collections.abc import Iterable

SHAPE_FIELDS = frozenset(
    {
        # transformer layers
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
        "ffn_hidden_size",
        "gated_linear_unit",
        "normalization",
        "add_bias_linear",
        "add_qkv_bias",
        "qk_layernorm",
        "qk_layernorm_scope",
        "norm_position",
        "residual_branches",
        "layernorm_bias",
        "softmax_type",
        "attention_output_gate",
        # experts
        "num_moe_experts",
        "moe_layer_freq",
        "moe_ffn_hidden_size",
        "moe_shared_expert_intermediate_size",
        "moe_shared_expert_gate",
        # latent attention
        "multi_latent_attention",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_head_dim",
        "qk_pos_emb_head_dim",
        "v_head_dim",
        # multi-token prediction
        "mtp_num_layers",
        "mtp_use_repeated_layer",
        # embeddings
        "vocab_size",
        "position_embedding_type",
        "max_position_embeddings",
        "share_embeddings_and_output_weights",
        # hybrid models
        "hybrid_layer_pattern",
        "mamba_state_dim",
        "mamba_head_dim",
        "mamba_num_groups",
        "mamba_num_heads",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        # T5 and MIMO
        "encoder_num_layers",
        "vision_num_layers",
        "vision_hidden_size",
        "vision_num_attention_heads",
        "vision_ffn_hidden_size",
        "projector_hidden_size",
        "image_size",
        "patch_size",
    }
)
"""Fields of the section `model`, and of its nested configs such as `model.transformer`."""

ADAPTER_SHAPE_FIELDS = frozenset(
    {"dim", "target_modules", "exclude_modules", "normalize_moe_lora", "_target_"}
)
"""Fields of the section `peft`."""


def fixed_by_weights(paths: Iterable[str]) -> list[str]:
    """Return those of the changed config fields with which an existing checkpoint cannot be loaded.

    Besides shapes, these are the classes of the model and of the adapters, and adding or removing the adapters.

    Args:
        paths: Dotted paths of the changed fields, such as `model.hidden_size`.
    """
    shape_fields = {"model": SHAPE_FIELDS | {"_target_"}, "peft": ADAPTER_SHAPE_FIELDS}
    shape_paths = []
    for path in paths:
        section, name = path.split(".")[0], path.split(".")[-1]
        if path == "peft" or name in shape_fields.get(section, ()):
            shape_paths.append(path)
    return shape_paths
