"""Fields of routed and shared experts, with groups: DeepSeek, GLM and Nemotron-H. No torch."""

from collections.abc import Mapping
from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.hf.layer_fields import expert_layers, layer_frequency

SIZES: Mapping[str, str] = {
    "n_routed_experts": "num_moe_experts",
    "num_experts_per_tok": "moe_router_topk",
    "moe_intermediate_size": "moe_ffn_hidden_size",
}
"""Field of config.json -> field of the section with the same meaning."""


def read_routing(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experts and the router of a section, whose first layers may be dense."""
    layers = range(content["num_hidden_layers"])
    scaling = float(content["routed_scaling_factor"])
    sigmoid = content["scoring_func"] == "sigmoid"
    return {
        **{name: content[key] for key, name in SIZES.items()},
        "moe_layer_freq": layer_frequency([layer >= content["first_k_dense_replace"] for layer in layers]),
        "moe_shared_expert_intermediate_size": content["n_shared_experts"] * content["moe_intermediate_size"],
        "moe_router_score_function": "sigmoid" if sigmoid else "softmax",
        "moe_router_enable_expert_bias": sigmoid,
        "moe_router_pre_softmax": not sigmoid,
        "moe_router_topk_scaling_factor": None if scaling == 1.0 else scaling,
        "moe_token_dispatcher_type": "alltoall",
        **read_groups(content),
    }


def read_groups(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of groups of experts, and how many of them a token chooses."""
    groups, chosen = content["n_group"] or 1, content["topk_group"] or 1
    if content.get("topk_method") == "greedy" or groups == 1:
        return {}
    return {"moe_router_num_groups": groups, "moe_router_group_topk": chosen}


def unequal_groups(content: Mapping[str, Any], *, largest: int) -> list[str]:
    """Return how Megatron Core chooses other groups; transformers rates one by the sum of its `largest` scores."""
    experts, chosen = content["num_experts_per_tok"], content["topk_group"] or 1
    if not read_groups(content) or experts // chosen == largest:
        return []
    return [
        f"num_experts_per_tok={experts} with topk_group={chosen} (Megatron Core rates a group of experts by its "
        f"{experts // chosen} largest scores, num_experts_per_tok / topk_group, and this model by {largest})"
    ]


def unequal_sigmoid(content: Mapping[str, Any]) -> list[str]:
    """Return how Megatron Core routes by sigmoid scores otherwise: in groups, or in the sum of a token's weights."""
    alone, normalized = content["num_experts_per_tok"] == 1, content.get("norm_topk_prob") is not False
    weights = (
        f"norm_topk_prob={normalized} with num_experts_per_tok={content['num_experts_per_tok']} (Megatron Core divides "
        "the scores of a token's experts by their sum, except for a single one)"
    )
    return [*unequal_groups(content, largest=2), *([weights] if alone == normalized else [])]


def write_routing(config: GPTModelConfig) -> dict[str, Any]:
    """Return the fields of config.json of the experts and the router of a section."""
    flags = expert_layers(config)
    width, shared = config.moe_ffn_hidden_size, config.moe_shared_expert_intermediate_size
    return {
        **{key: getattr(config, name) for key, name in SIZES.items()},
        "first_k_dense_replace": flags.index(1) if 1 in flags else len(flags),
        "n_shared_experts": (shared or 0) // width if width else 0,
        "norm_topk_prob": config.moe_router_score_function == "sigmoid" and config.moe_router_topk > 1,
        "n_group": config.moe_router_num_groups or 1,
        "topk_group": config.moe_router_group_topk or 1,
        "routed_scaling_factor": config.moe_router_topk_scaling_factor or 1.0,
    }
