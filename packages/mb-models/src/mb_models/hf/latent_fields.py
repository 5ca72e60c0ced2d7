"""Fields of DeepSeek's config.json: latent attention, group-limited routing and shared experts. No torch."""

from collections.abc import Mapping
from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.errors import HuggingFaceError
from mb_models.hf.layer_fields import expert_layers, layer_frequency

SIZES: Mapping[str, str] = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_head_dim",
    "qk_rope_head_dim": "qk_pos_emb_head_dim",
    "v_head_dim": "v_head_dim",
    "n_routed_experts": "num_moe_experts",
    "num_experts_per_tok": "moe_router_topk",
    "moe_intermediate_size": "moe_ffn_hidden_size",
}
"""Field of config.json -> field of the section with the same meaning."""

_SHARED: Mapping[str, object] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_head_dim": None,
}

DEFAULTS_V2: Mapping[str, object] = {
    **_SHARED,
    "max_position_embeddings": 2048,
    "n_routed_experts": 64,
    "num_experts_per_tok": None,
    "moe_intermediate_size": 1407,
    "n_shared_experts": 2,
    "first_k_dense_replace": 0,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "n_group": None,
    "topk_group": None,
    "routed_scaling_factor": 1.0,
}
DEFAULTS_V3: Mapping[str, object] = {
    **_SHARED,
    "max_position_embeddings": 4096,
    "num_key_value_heads": None,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "rope_interleave": True,
}
"""Fields of the two versions, and the values that transformers uses if they are missing."""

MUST_BE: Mapping[str, tuple[object, ...]] = {"rms_norm_eps": (1e-6,), "moe_layer_freq": (1, None)}
"""The norms of latent vectors have that epsilon in transformers, and all norms have the same in Megatron Core."""
MUST_BE_V2 = {
    **MUST_BE,
    "topk_method": ("greedy", "group_limited_greedy"),
    "scoring_func": ("softmax",),
    "norm_topk_prob": (False, None),
}
MUST_BE_V3 = {
    **MUST_BE,
    "topk_method": ("noaux_tc",),
    "scoring_func": ("sigmoid",),
    "norm_topk_prob": (True,),
    "rope_interleave": (True,),
}


def read_deepseek(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a section that DeepSeek-V2 and DeepSeek-V3 have.

    Raises:
        HuggingFaceError: sizes contradict each other, or Megatron Core selects other groups of experts.
    """
    _require_sizes(content)
    layers = range(content["num_hidden_layers"])
    scaling = float(content["routed_scaling_factor"])
    sigmoid = content["scoring_func"] == "sigmoid"
    return {
        **{name: content[key] for key, name in SIZES.items()},
        "num_query_groups": content["num_attention_heads"],
        "kv_channels": content["qk_nope_head_dim"] + content["qk_rope_head_dim"],
        "moe_layer_freq": layer_frequency([layer >= content["first_k_dense_replace"] for layer in layers]),
        "moe_shared_expert_intermediate_size": content["n_shared_experts"] * content["moe_intermediate_size"],
        "moe_router_score_function": "sigmoid" if sigmoid else "softmax",
        "moe_router_enable_expert_bias": sigmoid,
        "moe_router_pre_softmax": not sigmoid,
        "moe_router_topk_scaling_factor": None if scaling == 1.0 else scaling,
        "moe_token_dispatcher_type": "alltoall",
        **_read_groups(content, largest=2 if sigmoid else 1),
    }


def _require_sizes(content: Mapping[str, Any]) -> None:
    rotated, unrotated = content["qk_rope_head_dim"], content["qk_nope_head_dim"]
    fine = {
        "head_dim": (None, rotated),
        "qk_head_dim": (None, rotated + unrotated),
        "num_key_value_heads": (None, content["num_attention_heads"]),
    }
    wrong = [f"{key}={content[key]!r}" for key, values in fine.items() if content[key] not in values]
    wrong += [
        f"{key}={content[key]!r}" for key in ("num_experts_per_tok", "n_shared_experts") if not content[key]
    ]
    if wrong:
        raise HuggingFaceError(
            f"config.json: {', '.join(wrong)} cannot be converted, because latent attention has as many keys as "
            f"queries, of width {unrotated} + {rotated}, and every token has experts, of which some are shared. "
            "Correct the file."
        )


def _read_groups(content: Mapping[str, Any], *, largest: int) -> dict[str, Any]:
    """Return the groups of experts; each is rated by the sum of its `largest` largest scores in transformers."""
    limited = content["topk_method"] != "greedy"
    groups, chosen = content["n_group"] or 1, content["topk_group"] or 1
    if not limited or groups == 1:
        return {}
    experts = content["num_experts_per_tok"]
    if experts // chosen != largest:
        raise HuggingFaceError(
            f"config.json: num_experts_per_tok={experts}, topk_group={chosen} cannot be converted, because "
            f"Megatron Core rates a group of experts by its {experts // chosen} largest scores "
            f"(num_experts_per_tok / topk_group), and this model by {largest}."
        )
    return {"moe_router_num_groups": groups, "moe_router_group_topk": chosen}


def write_deepseek(config: GPTModelConfig) -> dict[str, Any]:
    """Return the fields of config.json of a section with latent attention."""
    flags = expert_layers(config)
    width, shared = config.moe_ffn_hidden_size, config.moe_shared_expert_intermediate_size
    sigmoid = config.moe_router_score_function == "sigmoid"
    limited = config.moe_router_num_groups is not None
    greedy = "group_limited_greedy" if limited else "greedy"
    return {
        **{key: getattr(config, name) for key, name in SIZES.items()},
        "head_dim": config.qk_pos_emb_head_dim,
        "qk_head_dim": config.qk_head_dim + config.qk_pos_emb_head_dim,
        "first_k_dense_replace": flags.index(1) if 1 in flags else len(flags),
        "n_shared_experts": (shared or 0) // width if width else 0,
        "scoring_func": config.moe_router_score_function,
        "topk_method": "noaux_tc" if sigmoid else greedy,
        "norm_topk_prob": sigmoid,
        "n_group": config.moe_router_num_groups or 1,
        "topk_group": config.moe_router_group_topk or 1,
        "routed_scaling_factor": config.moe_router_topk_scaling_factor or 1.0,
        **({"rope_interleave": True} if sigmoid else {}),
    }
