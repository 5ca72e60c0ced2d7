"""Sizes of a model in a `config.json` of Hugging Face, as fields with Megatron's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mb_plan.errors import ModelFileError
from mb_plan.shape.hybrid_pattern import ATTENTION, EXPERTS, MAMBA, MAMBA_FILTER, MLP

Config = Mapping[str, Any]


def fields_of_config(config: Config) -> dict[str, Any]:
    """Return Megatron's fields of a model.

    Multi-token prediction is left out, as in the published numbers of parameters.

    Raises:
        ModelFileError: The kind of model is not known, or a size is missing.
    """
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise ModelFileError(
            f"config.json: models of type {config.get('model_type')!r} are not known; known are "
            f"{', '.join(sorted(FAMILIES))}. Give the sizes as options (--layers, --hidden, ...), or a YAML file with "
            "Megatron's fields."
        )
    config = {**DEFAULTS.get(kind, {}), **config}
    counted = {**COUNTED, **COUNTED_OF.get(kind, {})}
    for name in counted:
        if config.get(name) not in (None, counted[name]):
            raise ModelFileError(
                f"config.json: {name} is {config[name]!r}, and a model of type {kind!r} is only counted with "
                f"{counted[name]!r}. Use a YAML file."
            )
    if kind == "gpt2":
        return _gpt2(config)
    if kind == "nemotron_h":
        config = {**config, "num_hidden_layers": len(_pattern(config))}
    return {**_decoder(config), **FAMILIES[kind](config)}


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
        "share_embeddings_and_output_weights": config["tie_word_embeddings"],
        "position_embedding_type": "learned_absolute",
    }


def _nothing(_config: Config) -> dict[str, Any]:
    return {}


def _window(config: Config, *, full_every: int = 0, first: int = 0) -> dict[str, Any]:
    """Return the sliding window and the layers that have one, if any.

    These are named by `layer_types`; without it, all from the `first` on but each `full_every`-th.
    """
    width, kinds = config.get("sliding_window"), config.get("layer_types")
    if not width or config.get("use_sliding_window") is False:
        return {}
    if kinds:
        flags = [int(kind == "sliding_attention") for kind in kinds]
    else:
        layers = range(1, _size(config, "num_hidden_layers") + 1)
        flags = [int(layer > first and not (full_every and layer % full_every == 0)) for layer in layers]
    if not any(flags):
        return {}
    return {"window_size": (width - 1, 0), "window_attn_skip_freq": None if all(flags) else flags}


def _qwen_window(config: Config) -> dict[str, Any]:
    return _window(config, first=config.get("max_window_layers") or 0)


def _qwen2(config: Config) -> dict[str, Any]:
    return {"add_qkv_bias": True, **_qwen_window(config)}


def _qwen3(config: Config) -> dict[str, Any]:
    return {"qk_layernorm": True, **_qwen_window(config)}


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
        "moe_layer_freq": [int(layer >= dense) for layer in range(layers)],
    }


def _gpt_oss(config: Config) -> dict[str, Any]:
    return {
        **_experts(config, "num_local_experts", "intermediate_size"),
        **_window(config, full_every=2),
        "add_bias_linear": True,
        "softmax_type": "learnable",
    }


def _olmo2(_config: Config) -> dict[str, Any]:
    return {"qk_layernorm": True, "qk_layernorm_scope": "all_heads"}


def _gemma2(config: Config) -> dict[str, Any]:
    return {**_window(config, full_every=2), "norm_position": "pre_and_post"}


def _gemma3(config: Config) -> dict[str, Any]:
    every = config.get("sliding_window_pattern") or 6
    return {**_window(config, full_every=every), "norm_position": "pre_and_post", "qk_layernorm": True}


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
        experts = {
            **_experts(config, "n_routed_experts", "moe_intermediate_size"),
            "moe_shared_expert_intermediate_size": _size(config, "moe_shared_expert_intermediate_size"),
            "moe_latent_size": config.get("moe_latent_size"),
        }
    return {
        "hybrid_layer_pattern": pattern,
        "share_embeddings_and_output_weights": False,  # in transformers, whatever tie_word_embeddings is
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
    "llama": _nothing,
    "mistral": _window,
    "mixtral": _mixtral,
    "nemotron_h": _nemotron_h,
    "olmo2": _olmo2,
    "phi3": _window,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _nothing,
}
"""`model_type` to the function that returns what the family has besides `_decoder`."""

COUNTED: Mapping[str, object] = {
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "mamba_proj_bias": False,
    "qkv_bias": True,
    "use_conv_bias": True,
    "conv_kernel": MAMBA_FILTER,
    "moe_layer_freq": 1,
}
"""Field on which numbers depend -> the only value with which models are counted."""
_NO_WINDOW = {"use_sliding_window": False}
COUNTED_OF: Mapping[str, Mapping[str, object]] = {
    "gpt_oss": {"attention_bias": True},
    "qwen2_moe": _NO_WINDOW,
    "qwen3_moe": _NO_WINDOW,
    "smollm3": _NO_WINDOW,
}
"""`model_type` to the values of fields that differ from `COUNTED`, or are further ones."""
_QWEN = {
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA = {"num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096}
DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "deepseek_v3": {"first_k_dense_replace": 3},
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "gpt2": {"tie_word_embeddings": True},
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8},
    "qwen2": _QWEN,
    "qwen2_moe": {"num_key_value_heads": 16, "use_sliding_window": False},
    "qwen3": {**_QWEN, "head_dim": 128},
    "qwen3_moe": {"num_key_value_heads": 4, "use_sliding_window": False},
    "smollm3": {"num_key_value_heads": 4, "tie_word_embeddings": True},
}
"""`model_type` to what transformers takes for fields that a file lacks, other than none of them.

transformers 4 leaves out values that are both its own default and that of the class, such as tied embeddings."""
