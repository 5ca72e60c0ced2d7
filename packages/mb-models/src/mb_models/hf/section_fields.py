"""Comparison of model sections by what their models compute. No torch."""

from dataclasses import fields, replace
from typing import Any, TypeVar

from mb_models.config import (
    GPTModelConfig,
    KernelFields,
    MoEFields,
    OverlapFields,
    ParallelFields,
    PrecisionFields,
)
from mb_models.gpt.variant_fields import LatentAttentionFields, YarnFields
from mb_models.hf.family import Section
from mb_models.hf.layer_fields import expert_layers, unrotated_layers, windowed_layers
from mb_models.hybrid.config import GatedDeltaFields, MambaModelConfig, StateSpaceFields, mamba_heads
from mb_models.megatron_fields import megatron_fields

_TRAINING = frozenset(
    [
        "init_method_std",
        "perform_initialization",
        "use_cpu_initialization",
        "hidden_dropout",
        "attention_dropout",
        "seq_length",
        "qk_clip",
        "qk_clip_alpha",
        "qk_clip_threshold",
        "log_max_attention_logit",
        "attention_softmax_in_fp32",
        "fp32_residual_connection",
        "apply_query_key_layer_scaling",
        "make_vocab_size_divisible_by",
        "parallel_output",
        "fp16_lm_cross_entropy",
        "vocab_size",
        "unpadded_vocab_size",
        "max_position_embeddings",
        "mtp_loss_scaling_factor",
        "mtp_use_repeated_layer",
        "mtp_detach_heads",
        "mla_down_proj_fusion",
        "moe_shared_expert_overlap",
        "moe_router_load_balancing_type",
        "moe_aux_loss_coeff",
        "moe_z_loss_coeff",
        "moe_router_dtype",
        "moe_router_bias_update_rate",
        "moe_token_dispatcher_type",
        "moe_pad_expert_input_to_capacity",
        "moe_token_drop_policy",
        "moe_grouped_gemm",
        "moe_permute_fusion",
        "moe_router_fusion",
        "moe_per_layer_logging",
    ]
)
"""Fields of training, of speed and of precision, which do not change the function that a model computes."""

_TRAINING_ENTRIES = frozenset(
    [
        "use_fused_weighted_squared_relu",
        "fused_single_qkv_rope",
        "use_transformer_engine_op_fuser",
        "use_te_activation_func",
        "memory_efficient_layer_norm",
        "moe_enable_deepep",
        "moe_flex_dispatcher_backend",
        "moe_flex_dispatcher_num_sms",
        "moe_deepep_num_sms",
        "moe_hybridep_num_sms",
        "moe_hybridep_num_sms_preprocessing",
        "moe_hybridep_num_blocks_permute",
        "moe_hybridep_num_blocks_unpermute",
        "moe_hybridep_pad_uneven_dispatch_inputs",
        "moe_permute_fusion_into_hybridep",
        "moe_router_padding_for_fp8",
        "moe_router_padding_for_quantization",
        "moe_layer_recompute",
        "overlap_dispatch_backward_with_experts_wgrad",
        "ep_overlap_early_attn_memory_release",
        "high_priority_a2a_comm_stream",
        "batch_p2p_sync",
        "barrier_with_L1_time",
        "cpu_offloading",
        "cpu_offloading_num_layers",
        "cpu_offloading_activations",
        "cpu_offloading_weights",
        "cpu_offloading_double_buffering",
        "cpu_offloading_retain_pinned_cpu_buffers",
        "offload_modules",
        "min_offloaded_tensor_size",
        "activation_offload_fraction",
        "delay_offload_until_cuda_graph",
        "delta_offload_bytes_across_pp_ranks",
        "fine_grained_offloading_max_inflight_offloads",
        "cuda_graph_scope",
        "cuda_graph_use_single_mempool",
        "cuda_graph_retain_backward_graph",
        "enable_cuda_graph",
        "external_cuda_graph",
        "disable_parameter_transpose_cache",
        "embedding_init_method_std",
        "init_model_with_meta_device",
    ]
)
"""The same of `transformer`: its other entries count if they are not Megatron's defaults."""


def _names(*kinds: type) -> set[str]:
    return {item.name for kind in kinds for item in fields(kind)}


_IRRELEVANT = _names(ParallelFields, PrecisionFields, OverlapFields, KernelFields) | _TRAINING
_LATENT = _names(LatentAttentionFields) - {"multi_latent_attention"}
_EXPERTS = _names(MoEFields) - {"num_moe_experts"}
_SCALING = {"rotary_scaling_factor", "original_max_position_embeddings", *("beta_fast", "beta_slow")}


_OF_LAYERS: dict[str, set[str]] = {
    "M": _names(StateSpaceFields),
    "G": _names(GatedDeltaFields),
    "*": {"num_attention_heads", "num_query_groups", "kv_channels"},
    "-": {"ffn_hidden_size"},
}
"""Letter of a pattern -> fields of its layers alone."""
Kind = TypeVar("Kind", bound=Section)


def with_sizes(config: Kind) -> Kind:
    """Return a copy of a section with all sizes that follow from others."""
    width = config.ffn_hidden_size or 4 * config.hidden_size
    state: dict[str, Any] = {}
    if isinstance(config, MambaModelConfig):
        heads = mamba_heads(config.hidden_size, config.mamba_num_heads, config.mamba_head_dim)
        state = {
            "hybrid_layer_pattern": config.hybrid_layer_pattern.replace("|", ""),
            "mamba_num_heads": heads,
        }
    return replace(
        config,
        **state,
        num_query_groups=config.num_query_groups or config.num_attention_heads,
        kv_channels=config.kv_channels or config.hidden_size // config.num_attention_heads,
        ffn_hidden_size=width,
        moe_ffn_hidden_size=config.moe_ffn_hidden_size or width,
        max_position_embeddings=config.max_position_embeddings or config.seq_length,
        transformer=_computed_entries(config),
        window_attn_skip_freq=windowed_layers(config) if config.window_size else None,
        moe_layer_freq=1 if config.num_moe_experts is None else expert_layers(config),
    )


def _computed_entries(config: Section) -> dict[str, object]:
    """Return the entries of `transformer` that change what a model computes, with a flag of each unrotated layer."""
    entries = {
        name: value
        for name, value in config.transformer.items()
        if name not in _TRAINING_ENTRIES and value != megatron_fields().get(name, ...)
    }
    if "no_rope_freq" in entries:
        flags = unrotated_layers(config)
        del entries["no_rope_freq"]
        entries |= {"no_rope_freq": flags} if any(flags) else {}
    return entries


def differences(config: Section, other: Section) -> list[str]:
    """Return the fields, with their values in `config`, by which two models compute different results.

    Further fields of a subclass, such as the name of the model on the hub, count only if it has its own
    `model_family`, whose provider may read them.
    """
    config, other = with_sizes(config), with_sizes(other)
    names = _compared(config)
    if not hasattr(config, "model_family"):
        names = [name for name in names if name in _names(type(other))]
    return [
        f"model.{name}={getattr(config, name)!r}"
        for name in names
        if _normal(getattr(config, name)) != _normal(getattr(other, name, None))
    ]


def _compared(config: Section) -> list[str]:
    """Return the fields that determine what the model of a section computes."""
    unused = set(_IRRELEVANT)
    if isinstance(config, MambaModelConfig):
        unused |= {
            name
            for letter, names in _OF_LAYERS.items()
            if letter not in config.hybrid_layer_pattern
            for name in names
        }
        unused |= {
            "num_layers",
            "moe_layer_freq",
            "mamba_chunk_size",
            "mamba_training_ssm_states_dtype",
        }
        if config.position_embedding_type != "rope":
            unused |= {"rotary_base", "rotary_percent"}
    if config.num_moe_experts is None:
        unused |= _EXPERTS
    if config.multi_latent_attention:
        # each token has as many keys as queries, and both have the width of two latent fields
        unused |= {"num_query_groups", "kv_channels", "position_embedding_type"}
        unused |= _SCALING | {"mscale", "mscale_all_dim"} if config.rope_type == "rope" else set()
    else:
        unused |= _LATENT
    if config.multi_latent_attention or config.position_embedding_type != "yarn":
        unused |= _names(YarnFields)
    if isinstance(config, GPTModelConfig) and not config.rope_scaling:
        unused.add("rope_scaling_factor")
    return [item.name for item in fields(config) if item.name not in unused]


def _normal(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
