"""Families with experts: Mixtral, Qwen2-MoE, Qwen3-MoE, GPT-OSS, DeepSeek-V2, V3, Kimi K2 and GLM-4.5. No torch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.errors import HuggingFaceError
from mb_models.hf import latent_fields as latent
from mb_models.hf import weight_tables as tables
from mb_models.hf.family import HuggingFaceFamily
from mb_models.hf.layer_fields import (
    FULL,
    WINDOW,
    expert_layers,
    layer_frequency,
    read_window,
    write_layer_types,
    write_window,
)
from mb_models.hf.routing_fields import read_routing, unequal_sigmoid, write_routing


def read_experts(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experts and the router of a section."""
    loss = content["router_aux_loss_coef"]
    return {
        "num_moe_experts": content["num_local_experts"],
        "moe_router_topk": content["num_experts_per_tok"],
        "moe_aux_loss_coeff": loss,
        "moe_token_dispatcher_type": "alltoall",
    }


def write_experts(config: GPTModelConfig) -> dict[str, Any]:
    """Return the fields of the experts and of the router."""
    loss = config.moe_aux_loss_coeff
    return {
        "num_local_experts": config.num_moe_experts,
        "num_experts_per_tok": config.moe_router_topk,
        "router_aux_loss_coef": loss[0] if isinstance(loss, list) else loss,
    }


def _read_mixtral(content: Mapping[str, Any]) -> dict[str, Any]:
    return read_experts(content) | read_window(content)


def _write_mixtral(config: GPTModelConfig) -> dict[str, Any]:
    return write_experts(config) | write_window(config)


def _read_qwen(content: Mapping[str, Any]) -> dict[str, Any]:
    dense, every = content["mlp_only_layers"] or [], content["decoder_sparse_step"]
    layers = range(content["num_hidden_layers"])
    shared = content.get("shared_expert_intermediate_size")
    return {
        **read_experts(content),
        **read_window(content),
        "moe_layer_freq": layer_frequency([i not in dense and (i + 1) % every == 0 for i in layers]),
        "moe_ffn_hidden_size": content["moe_intermediate_size"],
        "moe_router_pre_softmax": not content["norm_topk_prob"],
        **({"moe_shared_expert_intermediate_size": shared, "moe_shared_expert_gate": True} if shared else {}),
    }


def _write_qwen(config: GPTModelConfig) -> dict[str, Any]:
    shared = config.moe_shared_expert_intermediate_size
    return {
        **write_experts(config),
        "num_experts": config.num_moe_experts,
        "moe_intermediate_size": config.moe_ffn_hidden_size,
        "mlp_only_layers": [layer for layer, flag in enumerate(expert_layers(config)) if not flag],
        "decoder_sparse_step": 1,
        "norm_topk_prob": not config.moe_router_pre_softmax,
        **({} if shared is None else {"shared_expert_intermediate_size": shared}),
    }


QWEN_DEFAULTS: Mapping[str, object] = {
    "max_position_embeddings": 32768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
    "norm_topk_prob": False,
    "router_aux_loss_coef": 0.001,
    "use_sliding_window": False,
    "sliding_window": 4096,
}
"""Fields of Qwen's families with experts, and the values that transformers uses if they are missing."""

NO_WINDOW: Mapping[str, tuple[object, ...]] = {"use_sliding_window": (False, None)}

MIXTRAL = HuggingFaceFamily(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    layers=tables.MIXTRAL,
    defaults={
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
    },
    must_be={"router_jitter_noise": (0, None)},
    read=_read_mixtral,
    write=_write_mixtral,
)

QWEN2_MOE = HuggingFaceFamily(
    model_type="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    layers=tables.QWEN2_MOE,
    section={"add_qkv_bias": True},
    defaults={
        **QWEN_DEFAULTS,
        "num_key_value_heads": 16,
        "num_local_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "layer_types": None,
    },
    must_be={**NO_WINDOW, "qkv_bias": (True, None)},
    aliases={"num_experts": "num_local_experts"},
    read=_read_qwen,
    write=_write_qwen,
)

QWEN3_MOE = HuggingFaceFamily(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    layers=tables.QWEN3_MOE,
    section={"qk_layernorm": True},
    defaults={
        **QWEN_DEFAULTS,
        "num_key_value_heads": 4,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    must_be=NO_WINDOW,
    aliases={"num_experts": "num_local_experts"},
    read=_read_qwen,
    write=_write_qwen,
)


def _read_gpt_oss(content: Mapping[str, Any]) -> dict[str, Any]:
    quantization = content["quantization_config"] or {}
    if quantization.get("quant_method", "mxfp4") != "mxfp4":
        raise HuggingFaceError(
            f"config.json: quantization_config={quantization!r} cannot be converted, because only MXFP4 is "
            "dequantized. Save the model without quantization."
        )
    layers = range(content["num_hidden_layers"])
    kinds = content["layer_types"] or [FULL if layer % 2 else WINDOW for layer in layers]
    return {
        **read_experts(content),
        **read_window({**content, "layer_types": kinds}),
        "moe_ffn_hidden_size": content["intermediate_size"],
        "transformer": {
            "glu_linear_offset": 1.0,
            "activation_func_clamp_value": float(content["swiglu_limit"]),
        },
    }


def _write_gpt_oss(config: GPTModelConfig) -> dict[str, Any]:
    return {
        **write_experts(config),
        **write_layer_types(config),
        "intermediate_size": config.moe_ffn_hidden_size,
        "attention_bias": True,
        "swiglu_limit": config.transformer.get("activation_func_clamp_value", 7.0),
    }


GPT_OSS = HuggingFaceFamily(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    layers=tables.GPT_OSS,
    section={"add_bias_linear": True, "activation_func": "quick_gelu", "softmax_type": "learnable"},
    defaults={
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "router_aux_loss_coef": 0.001,
        "sliding_window": 128,
        "layer_types": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "swiglu_limit": 7.0,
        "initial_context_length": None,
        "quantization_config": None,
    },
    must_be={"attention_bias": (True, None), "swiglu_alpha": (1.702, None)},
    aliases={"experts_per_token": "num_experts_per_tok"},
    read=_read_gpt_oss,
    write=_write_gpt_oss,
)

_LATENT: Mapping[str, object] = {
    "multi_latent_attention": True,
    "qk_layernorm": True,
    "moe_router_dtype": "fp32",
}
_EXPERT_ALIASES = {"num_local_experts": "n_routed_experts", "num_experts": "n_routed_experts"}

DEEPSEEK_V2 = HuggingFaceFamily(
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    layers=tables.DEEPSEEK,
    section=_LATENT,
    defaults=latent.DEFAULTS_V2,
    must_be=latent.MUST_BE_V2,
    aliases=_EXPERT_ALIASES,
    unequal=latent.unequal_deepseek,
    read=latent.read_deepseek,
    write=latent.write_deepseek,
)

DEEPSEEK_V3 = HuggingFaceFamily(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    layers=tables.DEEPSEEK,
    section=_LATENT,
    defaults=latent.DEFAULTS_V3,
    must_be=latent.MUST_BE_V3,
    aliases=_EXPERT_ALIASES,
    unequal=latent.unequal_deepseek,
    read=latent.read_deepseek,
    write=latent.write_deepseek,
)

KIMI_K2 = replace(DEEPSEEK_V3, model_type="kimi_k2")
"""DeepSeek-V3 under another name."""


def _read_glm(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **read_routing(content),
        "add_qkv_bias": bool(content["attention_bias"]),
        "qk_layernorm": bool(content["use_qk_norm"]),
    }


def _write_glm(config: GPTModelConfig) -> dict[str, Any]:
    return {
        **write_routing(config),
        "attention_bias": config.add_qkv_bias,
        "use_qk_norm": config.qk_layernorm,
        "partial_rotary_factor": config.rotary_percent,
    }


GLM4_MOE = HuggingFaceFamily(
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    layers=tables.GLM4_MOE,
    section={"moe_router_dtype": "fp32"},
    defaults={
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "attention_bias": False,
        "use_qk_norm": False,
        "scoring_func": "sigmoid",
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    },
    must_be={
        "scoring_func": ("sigmoid",),
        "norm_topk_prob": (True, False),
        "topk_method": ("noaux_tc", None),
    },
    aliases={**_EXPERT_ALIASES, "num_mtp_layers": "num_nextn_predict_layers"},
    partial_rotation=True,
    unequal=unequal_sigmoid,
    read=_read_glm,
    write=_write_glm,
)

EXPERT_FAMILIES = (MIXTRAL, QWEN2_MOE, QWEN3_MOE, DEEPSEEK_V2, DEEPSEEK_V3, KIMI_K2, GPT_OSS, GLM4_MOE)
"""All of them, in the order in which an export tries them."""
