"""Sizes of a model in a `config.json` of Hugging Face, as fields with Megatron's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mb_plan.errors import ModelFileError
from mb_plan.shape.hybrid_pattern import ATTENTION, EXPERTS, MAMBA, MLP

Config = Mapping[str, Any]


def fields_of_config(config: Config) -> dict[str, Any]:
    """Return Megatron's fields of a model.

    Multi-token prediction is left out, as in the published numbers of parameters.

    Raises:
        ModelFileError: The kind of model is not known, or a size is missing.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ModelFileError(
            f"config.json: models of type {kind!r} are not known; known are {', '.join(sorted(FAMILIES))}. Give "
            "the sizes as options (--layers, --hidden, ...), or a YAML file with Megatron's fields."
        )
    if kind == "gpt2":
        return _gpt2(config)
    if kind == "nemotron_h":
        config = {**config, "num_hidden_layers": len(_pattern(config))}
    return {**_decoder(config), **FAMILIES[str(kind)](config)}


def _size(config: Config, name: str) -> int:
    size = config.get(name)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ModelFileError(
            f"config.json: {name} is {size!r}, and must be a positive integer. Correct the file."
        )
    return size


def _decoder(config: Config) -> dict[str, Any]:
    """Return what all decoders with rotary positions, RMS norms and gated MLPs have."""
    heads = _size(config, "num_attention_heads")
    return {
        "num_layers": _size(config, "num_hidden_layers"),
        "hidden_size": _size(config, "hidden_size"),
        "num_attention_heads": heads,
        "num_query_groups": config.get("num_key_value_heads") or heads,
        "kv_channels": config.get("head_dim") or _size(config, "hidden_size") // heads,
        "ffn_hidden_size": _size(config, "intermediate_size"),
        "vocab_size": _size(config, "vocab_size"),
        "max_position_embeddings": config.get("max_position_embeddings"),
        "share_embeddings_and_output_weights": config.get("tie_word_embeddings", False),
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "add_bias_linear": False,
    }


def _gpt2(config: Config) -> dict[str, Any]:
    return {
        "num_layers": _size(config, "n_layer"),
        "hidden_size": _size(config, "n_embd"),
        "num_attention_heads": _size(config, "n_head"),
        "ffn_hidden_size": config.get("n_inner") or 4 * _size(config, "n_embd"),
        "vocab_size": _size(config, "vocab_size"),
        "max_position_embeddings": _size(config, "n_positions"),
        "share_embeddings_and_output_weights": config.get("tie_word_embeddings", True),
        "position_embedding_type": "learned_absolute",
    }


def _llama(config: Config) -> dict[str, Any]:
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            raise ModelFileError(
                f"config.json: {name} is set, and such biases are not counted. Use a YAML file."
            )
    return {}


def _window(config: Config) -> dict[str, Any]:
    """Return the sliding window of every layer, if it is used."""
    width = config.get("sliding_window")
    return {} if not width or config.get("use_sliding_window") is False else {"window_size": (width - 1, 0)}


def _alternating_window(config: Config) -> dict[str, Any]:
    """Return the window of the layers that `layer_types` names, or of all but every second or other one."""
    width, kinds = config.get("sliding_window"), config.get("layer_types")
    if not width:
        return {}
    if kinds is None:
        return {
            "window_size": (width - 1, 0),
            "window_attn_skip_freq": config.get("sliding_window_pattern") or 2,
        }
    flags = [kind == "sliding_attention" for kind in kinds]
    return {"window_size": (width - 1, 0), "window_attn_skip_freq": flags}


def _qwen2(config: Config) -> dict[str, Any]:
    return {"add_qkv_bias": True}


def _qwen3(config: Config) -> dict[str, Any]:
    return {"qk_layernorm": True, **_llama(config)}


def _experts(config: Config, number: str, width: str) -> dict[str, Any]:
    return {
        "num_moe_experts": _size(config, number),
        "moe_router_topk": _size(config, "num_experts_per_tok"),
        "moe_ffn_hidden_size": _size(config, width),
    }


def _mixtral(config: Config) -> dict[str, Any]:
    return {**_experts(config, "num_local_experts", "intermediate_size"), **_window(config)}


def _sparse_layers(config: Config) -> dict[str, Any]:
    """Return the layers of a Qwen model that have experts."""
    step, dense = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or []
    layers = _size(config, "num_hidden_layers")
    has = [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]
    return {"moe_layer_freq": [int(flag) for flag in has]}


def _qwen2_moe(config: Config) -> dict[str, Any]:
    shared = _size(config, "shared_expert_intermediate_size")
    return {
        **_qwen2(config),
        **_experts(config, "num_experts", "moe_intermediate_size"),
        **_sparse_layers(config),
        "moe_shared_expert_intermediate_size": shared,
        "moe_shared_expert_gate": True,
    }


def _qwen3_moe(config: Config) -> dict[str, Any]:
    # the first: transformers 5
    number = "num_local_experts" if "num_local_experts" in config else "num_experts"
    experts = _experts(config, number, "moe_intermediate_size")
    return {**_qwen3(config), **experts, **_sparse_layers(config)}


def _deepseek(config: Config) -> dict[str, Any]:
    layers, dense = _size(config, "num_hidden_layers"), config.get("first_k_dense_replace") or 0
    step = config.get("moe_layer_freq") or 1
    width = _size(config, "moe_intermediate_size")
    return {
        "multi_latent_attention": True,
        "q_lora_rank": config.get("q_lora_rank"),
        "kv_lora_rank": _size(config, "kv_lora_rank"),
        "qk_head_dim": _size(config, "qk_nope_head_dim"),
        "qk_pos_emb_head_dim": _size(config, "qk_rope_head_dim"),
        "v_head_dim": _size(config, "v_head_dim"),
        "qk_layernorm": True,
        **_experts(config, "n_routed_experts", "moe_intermediate_size"),
        "moe_shared_expert_intermediate_size": width * (config.get("n_shared_experts") or 0),
        "moe_layer_freq": [int(layer >= dense and layer % step == 0) for layer in range(layers)],
    }


def _gpt_oss(config: Config) -> dict[str, Any]:
    return {
        **_experts(config, "num_local_experts", "intermediate_size"),
        **_alternating_window(config),
        "add_bias_linear": True,
        "softmax_type": "learnable",
    }


def _olmo2(config: Config) -> dict[str, Any]:
    return {"qk_layernorm": True, "qk_layernorm_scope": "all_heads", **_llama(config)}


def _gemma2(config: Config) -> dict[str, Any]:
    tied = config.get("tie_word_embeddings", True)
    return {
        **_alternating_window(config),
        "norm_position": "pre_and_post",
        "share_embeddings_and_output_weights": tied,
    }


def _gemma3(config: Config) -> dict[str, Any]:
    return {**_gemma2(config), "qk_layernorm": True}


_LETTERS = {
    "linear_attention": MAMBA,
    "mamba": MAMBA,
    "moe": EXPERTS,
    "full_attention": ATTENTION,
    "attention": ATTENTION,
    "mlp": MLP,
}
"""Kind of a layer in the files of transformers 5, which have no pattern -> its letter."""


def _pattern(config: Config) -> str:
    """Return the letters of the layers of a Nemotron-H."""
    pattern, kinds = config.get("hybrid_override_pattern"), config.get("layers_block_type")
    if not isinstance(pattern, str) and isinstance(kinds, list) and {*kinds} <= {*_LETTERS}:
        pattern = "".join(_LETTERS[kind] for kind in kinds)
    if not isinstance(pattern, str) or not pattern:
        raise ModelFileError(
            f"config.json: hybrid_override_pattern is {pattern!r}, layers_block_type is {kinds!r}, and one of them "
            f"must name the layers, the second by {', '.join(_LETTERS)}. Correct the file."
        )
    return pattern


def _nemotron_h(config: Config) -> dict[str, Any]:
    experts: dict[str, Any] = {}
    pattern = _pattern(config)
    if "E" in pattern:
        shared = (config.get("n_shared_experts") or 0) * (
            config.get("moe_shared_expert_intermediate_size") or 0
        )
        experts = {
            **_experts(config, "n_routed_experts", "moe_intermediate_size"),
            "moe_shared_expert_intermediate_size": shared,
            "moe_latent_size": config.get("moe_latent_size"),
        }
    return {
        "hybrid_layer_pattern": pattern,
        "mamba_num_heads": _size(config, "mamba_num_heads"),
        "mamba_head_dim": _size(config, "mamba_head_dim"),
        "mamba_state_dim": _size(config, "ssm_state_size"),
        "mamba_num_groups": _size(config, "n_groups"),
        "gated_linear_unit": False,
        "position_embedding_type": "none",
        **experts,
    }


FAMILIES: Mapping[str, Callable[[Config], dict[str, Any]]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "llama": _llama,
    "mistral": _window,
    "mixtral": _mixtral,
    "nemotron_h": _nemotron_h,
    "olmo2": _olmo2,
    "phi3": _window,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _llama,
}
"""`model_type` to the function that returns what the family has besides `_decoder`."""
