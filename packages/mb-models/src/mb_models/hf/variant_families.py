"""Families with variants of Llama's layers: OLMo, SmolLM3, EXAONE 4, Granite and Seed-OSS. No torch."""

import math
from collections.abc import Mapping
from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.errors import HuggingFaceError
from mb_models.hf import weight_tables as tables
from mb_models.hf.expert_families import read_experts, write_experts
from mb_models.hf.family import HuggingFaceFamily
from mb_models.hf.layer_fields import (
    FULL,
    WINDOW,
    read_biases,
    read_window,
    unrotated_layers,
    windows_but_every,
    without_rotation,
    write_biases,
    write_layer_types,
    write_window,
)
from mb_models.hf.rotary_fields import local_base, local_rotation, write_local_rotary

_NORMS_OVER_HEADS: Mapping[str, object] = {"qk_layernorm": True, "qk_layernorm_scope": "all_heads"}


_OLMO3_BASE = 5e5


def _read_olmo3(content: Mapping[str, Any]) -> dict[str, Any]:
    kinds = content["layer_types"] or windows_but_every(content, 4)
    window = read_window({**content, "layer_types": kinds})
    if window and content["rope_theta"] != _OLMO3_BASE and "rope_theta" not in local_rotation(content):
        raise HuggingFaceError(
            f"config.json: rope_theta={content['rope_theta']!r} cannot be converted, because transformers 5 rotates "
            f"layers with a window by {_OLMO3_BASE:.0f}, and earlier versions by this base. Set the rope_theta of "
            f"{FULL} and {WINDOW} in rope_parameters."
        )
    return {**window, "rotary_base_local": local_base(content) if window else None}


def _write_olmo3(config: GPTModelConfig) -> dict[str, Any]:
    return {**write_layer_types(config), **write_local_rotary(config)}


def _read_olmoe(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **read_experts(content),
        "moe_ffn_hidden_size": content["intermediate_size"],
        "moe_router_pre_softmax": not content["norm_topk_prob"],
    }


def _write_olmoe(config: GPTModelConfig) -> dict[str, Any]:
    return {
        **write_experts(config),
        "num_experts": config.num_moe_experts,
        "intermediate_size": config.moe_ffn_hidden_size,
        "norm_topk_prob": not config.moe_router_pre_softmax,
    }


def _read_smollm(content: Mapping[str, Any]) -> dict[str, Any]:
    layers, interval = content["num_hidden_layers"], content["no_rope_layer_interval"]
    kinds = windows_but_every(content, interval)
    rotated = content["no_rope_layers"] or [int(kind == WINDOW) for kind in kinds]
    if len(rotated) < layers:
        raise HuggingFaceError(
            f"config.json: no_rope_layers lists {len(rotated)} layers of {layers}, because it selects those without "
            "rotary positions. Correct the file."
        )
    flags = [int(not flag) for flag in rotated[:layers]]
    used = content["use_sliding_window"] and content["sliding_window"] is not None
    kinds = content["layer_types"] or [WINDOW if used and flag else FULL for flag in flags]
    return {
        **read_biases(content),
        **read_window({**content, "layer_types": kinds}),
        **without_rotation(flags),
    }


def _write_smollm(config: GPTModelConfig) -> dict[str, Any]:
    return {
        **write_biases(config),
        **write_layer_types(config),
        "use_sliding_window": config.window_size is not None,
        "no_rope_layers": [int(not flag) for flag in unrotated_layers(config)],
        "pad_token_id": None,  # the default of transformers, 128004, is outside of small vocabularies
    }


def _read_exaone(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the windows; if some layers have one, the others have no rotary positions."""
    if content["sliding_window"] is None:
        return {}
    pattern = content["sliding_window_pattern"] or 0  # a number, or letters such as LLLG
    interval = len(pattern) if isinstance(pattern, str) else pattern
    kinds = content["layer_types"] or windows_but_every(content, interval)
    flags = [int(kind == FULL) for kind in kinds]
    return {**read_window({**content, "layer_types": kinds}), **without_rotation(flags)}


def _write_exaone(config: GPTModelConfig) -> dict[str, Any]:
    # without a window, all layers have rotary positions, even if it is that of no layer
    window = {"sliding_window": 4096} if any(unrotated_layers(config)) else {}
    return {
        **write_window(config) | window,
        **write_layer_types(config),
        "sliding_window_pattern": 4 if config.window_size else 0,
    }


def _read_granite(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **read_biases(content),
        "embedding_multiplier": float(content["embedding_multiplier"]),
        "residual_multiplier": float(content["residual_multiplier"]),
        "softmax_scale": float(content["attention_multiplier"]),
        "logits_multiplier": 1.0 / content["logits_scaling"],
    }


def _write_granite(config: GPTModelConfig) -> dict[str, Any]:
    width = config.kv_channels or config.hidden_size // config.num_attention_heads
    scaling = 1.0 / config.logits_multiplier
    return {
        **write_biases(config),
        "embedding_multiplier": config.embedding_multiplier,
        "residual_multiplier": config.residual_multiplier,
        "attention_multiplier": config.softmax_scale or width**-0.5,
        "logits_scaling": float(round(scaling)) if math.isclose(scaling, round(scaling)) else scaling,
    }


def _read_seed(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"hidden_dropout": content["residual_dropout"]}


def _write_seed(config: GPTModelConfig) -> dict[str, Any]:
    return {"residual_dropout": config.hidden_dropout}


OLMO2 = HuggingFaceFamily(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    layers=tables.POST_NORM_LAYERS,
    section={**_NORMS_OVER_HEADS, "norm_position": "post"},
    defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
)

OLMO3 = HuggingFaceFamily(
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    layers=tables.POST_NORM_LAYERS,
    section={**_NORMS_OVER_HEADS, "norm_position": "post"},
    defaults={
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": _OLMO3_BASE,
        "sliding_window": 4096,
        "layer_types": None,
    },
    local_rotation=True,
    read=_read_olmo3,
    write=_write_olmo3,
)

OLMOE = HuggingFaceFamily(
    model_type="olmoe",
    architecture="OlmoeForCausalLM",
    layers=tables.QWEN3_MOE,
    section=_NORMS_OVER_HEADS,
    defaults={
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "num_local_experts": 64,
        "num_experts_per_tok": 8,
        "router_aux_loss_coef": 0.01,
        "norm_topk_prob": False,
    },
    must_be={"clip_qkv": (None,)},
    aliases={"num_experts": "num_local_experts"},
    read=_read_olmoe,
    write=_write_olmoe,
)

SMOLLM3 = HuggingFaceFamily(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    layers=tables.LLAMA,
    defaults={
        "max_position_embeddings": 32768,
        "num_key_value_heads": 4,
        "rope_theta": 2e6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": None,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
    },
    read=_read_smollm,
    write=_write_smollm,
)

EXAONE4 = HuggingFaceFamily(
    model_type="exaone4",
    architecture="Exaone4ForCausalLM",
    layers=tables.POST_NORM_LAYERS,
    section={"qk_layernorm": True, "norm_position": "post"},
    defaults={
        "max_position_embeddings": 2048,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "layer_types": None,
    },
    read=_read_exaone,
    write=_write_exaone,
)

GRANITE = HuggingFaceFamily(
    model_type="granite",
    architecture="GraniteForCausalLM",
    layers=tables.LLAMA,
    defaults={
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "mlp_bias": False,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    read=_read_granite,
    write=_write_granite,
)

SEED_OSS = HuggingFaceFamily(
    model_type="seed_oss",
    architecture="SeedOssForCausalLM",
    layers=tables.LLAMA,
    section={"add_qkv_bias": True},
    defaults={
        "max_position_embeddings": 524288,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_dropout": 0.1,
        "residual_dropout": 0.1,
        "attention_bias": True,
        "attention_out_bias": False,
    },
    must_be={"attention_bias": (True,), "attention_out_bias": (False,)},
    read=_read_seed,
    write=_write_seed,
)

VARIANT_FAMILIES = (OLMO2, OLMO3, OLMOE, SMOLLM3, EXAONE4, GRANITE, SEED_OSS)
