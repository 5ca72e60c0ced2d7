"""Fields of DeepSeek's config.json: latent attention, besides the experts. No torch."""

from collections.abc import Mapping
from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.errors import HuggingFaceError
from mb_models.hf.routing_fields import read_routing, unequal_groups, unequal_sigmoid, write_routing

SIZES: Mapping[str, str] = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_head_dim",
    "qk_rope_head_dim": "qk_pos_emb_head_dim",
    "v_head_dim": "v_head_dim",
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

LATENT_EPSILON = 1e-6
"""Epsilon of the norms of latent vectors in transformers; in Megatron Core that of all norms."""

MUST_BE: Mapping[str, tuple[object, ...]] = {"moe_layer_freq": (1, None)}
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
    "norm_topk_prob": (True, False),
    "rope_interleave": (True,),
}


def read_deepseek(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a section that DeepSeek-V2 and DeepSeek-V3 have.

    Raises:
        HuggingFaceError: sizes contradict each other.
    """
    _require_sizes(content)
    return {
        **{name: content[key] for key, name in SIZES.items()},
        "num_query_groups": content["num_attention_heads"],
        "kv_channels": content["qk_nope_head_dim"] + content["qk_rope_head_dim"],
        **read_routing(content),
    }


def unequal_deepseek(content: Mapping[str, Any]) -> list[str]:
    """Return what Megatron Core computes differently."""
    epsilon = content["rms_norm_eps"]
    norms = f"rms_norm_eps={epsilon} (the norms of latent vectors have {LATENT_EPSILON}, Megatron Core's {epsilon})"
    sigmoid = content["scoring_func"] == "sigmoid"
    routing = unequal_sigmoid(content) if sigmoid else unequal_groups(content, largest=1)
    return [*([norms] if epsilon != LATENT_EPSILON else []), *routing]


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


def write_deepseek(config: GPTModelConfig) -> dict[str, Any]:
    """Return the fields of config.json of a section with latent attention."""
    sigmoid = config.moe_router_score_function == "sigmoid"
    greedy = "greedy" if config.moe_router_num_groups is None else "group_limited_greedy"
    return {
        **{key: getattr(config, name) for key, name in SIZES.items()},
        **write_routing(config),
        "head_dim": config.qk_pos_emb_head_dim,
        "qk_head_dim": config.qk_head_dim + config.qk_pos_emb_head_dim,
        "scoring_func": config.moe_router_score_function,
        "topk_method": "noaux_tc" if sigmoid else greedy,
        **({"rope_interleave": True} if sigmoid else {}),
    }
