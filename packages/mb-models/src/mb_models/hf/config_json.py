"""Conversion between config.json and a model section, for Llama, Qwen2, Qwen3 and Mixtral. No torch.

Settings that Megatron would compute differently from transformers are rejected, never dropped.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mb_models.config import DType, GPTModelConfig
from mb_models.hf.errors import HuggingFaceError

ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
}
"""model_type of config.json -> its architecture class."""

LLAMA3_SCALING: Mapping[str, float] = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Constants of Megatron Core's `rope_scaling`; only the factor is configurable."""

MUST_BE: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "router_jitter_noise": (0, None),
}
"""Fields of config.json with their convertible values; a missing field has the value in `DEFAULTS`, or None."""

REQUIRED = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
"""Fields of config.json that determine the shapes of the weights; they have no defaults."""

_COMMON: Mapping[str, object] = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
_QWEN = {**_COMMON, "max_position_embeddings": 32768, "num_key_value_heads": 32}

DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama": {**_COMMON, "max_position_embeddings": 2048},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
    "mixtral": {
        **_COMMON,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.001,
    },
}
"""model_type of config.json -> values that transformers uses for missing fields."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json.

    Raises:
        HuggingFaceError: it is missing, is no JSON object, or its model_type is none of `ARCHITECTURES`.
    """
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise HuggingFaceError(
            f"{path}: does not exist, because {folder} is no folder of a Hugging Face model. Pass one that holds "
            "config.json and *.safetensors."
        ) from error
    except json.JSONDecodeError as error:
        raise HuggingFaceError(f"{path}: is no JSON ({error}). Download the file again.") from error
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind not in ARCHITECTURES:
        raise HuggingFaceError(
            f"{path}: model_type is {kind!r}, and only {', '.join(ARCHITECTURES)} can be converted."
        )
    return dict(content)


def section_of(content: Mapping[str, Any], *, dtype: DType) -> GPTModelConfig:
    """Return the model section of a config.json; `dtype` is that of the weights.

    Dropout is 0, as in transformers; seq_length is the model's maximum, which the caller may reduce.

    Raises:
        HuggingFaceError: fields of `REQUIRED` are missing, or fields have values that Megatron Core would compute
            differently; lists all fields of either kind.
    """
    content = _complete(content)
    kind = content["model_type"]
    experts = content["num_local_experts"] if kind == "mixtral" else None
    return GPTModelConfig(
        num_layers=content["num_hidden_layers"],
        hidden_size=content["hidden_size"],
        ffn_hidden_size=content["intermediate_size"],
        num_attention_heads=content["num_attention_heads"],
        num_query_groups=content.get("num_key_value_heads") or content["num_attention_heads"],
        kv_channels=content.get("head_dim") or content["hidden_size"] // content["num_attention_heads"],
        vocab_size=content["vocab_size"],
        seq_length=content["max_position_embeddings"],
        max_position_embeddings=content["max_position_embeddings"],
        position_embedding_type="rope",
        normalization="RMSNorm",
        layernorm_epsilon=content["rms_norm_eps"],
        gated_linear_unit=True,
        activation_func="silu",
        add_bias_linear=False,
        add_qkv_bias=kind == "qwen2",
        qk_layernorm=kind == "qwen3",
        share_embeddings_and_output_weights=bool(content.get("tie_word_embeddings", False)),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        init_method_std=content.get("initializer_range", 0.02),
        calculate_per_token_loss=True,
        params_dtype=dtype,
        bf16=dtype == "bfloat16",
        fp16=dtype == "float16",
        num_moe_experts=experts,
        moe_router_topk=content["num_experts_per_tok"] if experts else 2,
        moe_aux_loss_coeff=content["router_aux_loss_coef"] if experts else 0.0,
        moe_token_dispatcher_type="alltoall" if experts else "allgather",
        **_rotary(content),
    )


def _complete(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json with the values of missing fields, if Megatron can compute the same results."""
    missing = [key for key in REQUIRED if key not in content]
    if missing:
        raise HuggingFaceError(
            f"config.json: lacks {', '.join(missing)}, because the shapes of the weights are unknown without them. "
            "Download the file again."
        )
    content = {**DEFAULTS[content["model_type"]], **content}
    wrong = [f"{key}={content[key]!r}" for key, fine in MUST_BE.items() if content.get(key) not in fine]
    # qwen2 and qwen3 write a window that use_sliding_window=false disables; for mixtral and llama it applies
    if content.get("sliding_window") is not None and "use_sliding_window" not in content:
        wrong.append(f"sliding_window={content['sliding_window']!r}")
    if wrong:
        raise HuggingFaceError(
            f"config.json: {', '.join(wrong)} cannot be converted, because the model would compute different results."
        )
    return content


def _rotary(content: Mapping[str, Any]) -> dict[str, Any]:
    """Read the rotary embedding from `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`."""
    rotary = dict(content.get("rope_parameters") or content.get("rope_scaling") or {})
    base = rotary.get("rope_theta", content["rope_theta"])
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    share = rotary.get("partial_rotary_factor", content.get("partial_rotary_factor")) or 1.0
    if base != int(base) or share != 1.0:
        raise HuggingFaceError(
            f"config.json: rope_theta={base!r}, partial_rotary_factor={share!r} cannot be converted, because the "
            "base must be an integer, and partial rotation is not supported."
        )
    if kind == "default":
        return {"rotary_base": int(base)}
    if kind == "linear" and "factor" in rotary:
        return {"rotary_base": int(base), "seq_len_interpolation_factor": float(rotary["factor"])}
    if (
        kind == "llama3"
        and "factor" in rotary
        and all(rotary.get(key) == value for key, value in LLAMA3_SCALING.items())
    ):
        return {
            "rotary_base": int(base),
            "rope_scaling": True,
            "rope_scaling_factor": float(rotary["factor"]),
        }
    raise HuggingFaceError(
        f"config.json: the rotary embedding {rotary!r} cannot be converted, because Megatron Core supports default, "
        f"linear, and llama3 with {dict(LLAMA3_SCALING)}."
    )


def _unconvertible_fields(config: GPTModelConfig) -> list[str]:
    """Return the fields with values that no model of `ARCHITECTURES` supports."""
    needed: dict[str, object] = {
        "position_embedding_type": "rope",
        "rotary_percent": 1.0,
        "rotary_interleaved": False,
        "normalization": "RMSNorm",
        "layernorm_zero_centered_gamma": False,
        "gated_linear_unit": True,
        "activation_func": "silu",
        "add_bias_linear": False,
        "softmax_scale": None,
        "window_size": None,
        "qk_l2_norm": False,
        "moe_shared_expert_intermediate_size": None,
        "moe_expert_capacity_factor": None,
        "transformer": {},
    }
    if config.num_moe_experts is not None:
        needed |= {
            "moe_layer_freq": 1,
            "moe_router_score_function": "softmax",
            "moe_router_pre_softmax": False,
            "moe_router_enable_expert_bias": False,
            "moe_router_num_groups": None,
            "moe_router_topk_scaling_factor": None,
            "moe_ffn_hidden_size": (None, config.ffn_hidden_size),
            "add_qkv_bias": False,
            "qk_layernorm": False,
        }
    elif config.qk_layernorm:
        needed |= {"add_qkv_bias": False}
    wrong = []
    for name, fine in needed.items():
        value = getattr(config, name)
        if value not in fine if isinstance(fine, tuple) else value != fine:
            wrong.append(f"model.{name}={value!r}")
    return wrong


def config_of(config: GPTModelConfig, *, vocab_size: int, dtype: str) -> dict[str, Any]:
    """Return the config.json of a model section: Mixtral's with experts, Qwen's with its biases or norms, else Llama's.

    Raises:
        HuggingFaceError: no model of `ARCHITECTURES` computes the same; lists the fields.
    """
    wrong = _unconvertible_fields(config)
    if wrong:
        raise HuggingFaceError(
            f"{', '.join(wrong)}: cannot be exported, because no model of {', '.join(ARCHITECTURES)} computes the same."
        )
    kind = _kind_of(config)
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_hidden_size or 4 * config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_query_groups or config.num_attention_heads,
        "head_dim": config.kv_channels or config.hidden_size // config.num_attention_heads,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings or config.seq_length,
        "rms_norm_eps": config.layernorm_epsilon,
        **_rope_fields(config),
        "tie_word_embeddings": config.share_embeddings_and_output_weights,
        "initializer_range": config.init_method_std,
        "vocab_size": vocab_size,
        "dtype": dtype,
        "torch_dtype": dtype,
        **_fields_of_kind(config, kind),
    }


def _kind_of(config: GPTModelConfig) -> str:
    """Return the model_type that computes the same as a section."""
    if config.num_moe_experts is not None:
        return "mixtral"
    if config.qk_layernorm:
        return "qwen3"
    return "qwen2" if config.add_qkv_bias else "llama"


def _rope_fields(config: GPTModelConfig) -> dict[str, Any]:
    """Return the rotary embedding in both spellings: transformers 5 reads the first, earlier versions the others."""
    rotary: dict[str, object] = {"rope_type": "default"}
    if config.rope_scaling:
        rotary = {"rope_type": "llama3", "factor": config.rope_scaling_factor, **LLAMA3_SCALING}
    elif config.seq_len_interpolation_factor is not None:
        rotary = {"rope_type": "linear", "factor": config.seq_len_interpolation_factor}
    return {
        "rope_parameters": {"rope_theta": float(config.rotary_base), **rotary},
        "rope_theta": float(config.rotary_base),
        "rope_scaling": None if rotary["rope_type"] == "default" else rotary,
    }


def _fields_of_kind(config: GPTModelConfig, kind: str) -> dict[str, Any]:
    """Return the fields of config.json that only some kinds of models have."""
    if kind == "mixtral":
        loss = config.moe_aux_loss_coeff
        return {
            "router_aux_loss_coef": loss[0] if isinstance(loss, list) else loss,
            "num_local_experts": config.num_moe_experts,
            "num_experts_per_tok": config.moe_router_topk,
            "sliding_window": None,
        }
    attention = {"attention_bias": False} if kind in ("llama", "qwen3") else {}
    window = {"use_sliding_window": False} if kind in ("qwen2", "qwen3") else {}
    return {**attention, **window}
