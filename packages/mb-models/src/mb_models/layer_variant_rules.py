"""Rules on `mb_models.variant_fields.LayerVariantFields`."""

from collections.abc import Mapping
from typing import Any

from mb_models._rules import Rule
from mb_models.hybrid_rules import family_rule
from mb_models.mimo_rules import FAMILY_FIELD
from mb_models.model_rule import model_rule

NEUTRAL = {
    "norm_position": "pre",
    "residual_branches": "sequential",
    "layernorm_bias": True,
    "qk_layernorm_scope": "head",
    "rotary_base_local": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_multiplier": 1.0,
}
"""Fields of the variants, with the values that have no effect."""


def _local_base(base: int | None, window: tuple[int, int] | None, kind: str, latent: bool) -> str | None:
    if base is None or (base >= 1 and window is not None and kind == "rope" and not latent):
        return None
    return f"is {base} with window_size={window}, position_embedding_type={kind}, multi_latent_attention={latent}"


EXCLUDED_BY_SOFTCAP = (
    "multi_latent_attention",
    "apply_query_key_layer_scaling",
    "fp8_dot_product_attention",
    "fp8_multi_head_attention",
    "qk_clip",
    "log_max_attention_logit",
)
"""Switches of attention kernels that attention with a soft cap does not have."""


def _softcap(cap: float | None, backend: str, softmax: str, *switches: bool) -> str | None:
    if cap is None:
        return None
    found = [f"{name}=true" for name, on in zip(EXCLUDED_BY_SOFTCAP, switches, strict=True) if on]
    found += [f"attention_backend={backend}"] if backend in ("flash", "fused") else []
    found += [f"softmax_type={softmax}"] if softmax != "vanilla" else []
    return f"is {cap} with {', '.join(found)}" if found else None


def _positive(embedding: float, residual: float, logits: float, *caps: float | None) -> str | None:
    names = ("embedding_multiplier", "residual_multiplier", "logits_multiplier", *_CAPS)
    values = (embedding, residual, logits, *caps)
    wrong = [
        f"{name}={value}"
        for name, value in zip(names, values, strict=True)
        if value is not None and value <= 0
    ]
    return f"must be positive ({', '.join(wrong)})" if wrong else None


_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def _norms_after_only(position: str, impl: str) -> str | None:
    return f"is {position} with transformer_impl={impl}" if position == "post" and impl != "local" else None


def _all_heads(scope: str, normed: bool, kind: str, latent: bool, groups: int | None, tp: int) -> str | None:
    if scope == "head" or tp < 1:
        return None
    if normed and kind == "RMSNorm" and not latent and (groups is None or groups % tp == 0):
        return None
    return (
        f"is {scope} with qk_layernorm={normed}, normalization={kind}, multi_latent_attention={latent}, "
        f"num_query_groups={groups}, tensor_model_parallel_size={tp}"
    )


def _parallel(
    branches: str, position: str, experts: int | None, overlap: bool, graphs: str, impl: str
) -> str | None:
    if branches == "sequential":
        return None
    wrong = [f"norm_position={position}"] if position != "pre" else []
    wrong += [f"num_moe_experts={experts}"] if experts is not None else []
    wrong += ["overlap_moe_expert_parallel_comm=true"] if overlap else []
    wrong += [f"cuda_graph_impl={graphs}"] if graphs != "none" else []
    fused = branches == "parallel_shared_norm" and impl != "local"
    wrong += [f"transformer_impl={impl}"] if fused else []
    return f"is {branches} with {', '.join(wrong)}" if wrong else None


def _biasless(bias: bool, kind: str, zero_centred: bool, impl: str) -> str | None:
    if bias or (kind == "LayerNorm" and not zero_centred and impl == "local"):
        return None
    return f"is false with normalization={kind}, layernorm_zero_centered_gamma={zero_centred}, transformer_impl={impl}"


def _unrotated(further: Mapping[str, Any], layers: int, kind: str, latent: bool) -> str | None:
    every = further.get("no_rope_freq")
    if not every:
        return None
    if kind not in ("rope", "yarn") or latent:
        return f"no_rope_freq={every} with position_embedding_type={kind}, multi_latent_attention={latent}"
    if isinstance(every, int):
        return (
            None
            if every > 0 and layers % every == 0
            else f"no_rope_freq={every} does not divide {layers} layers"
        )
    return None if len(every) == layers else f"no_rope_freq lists {len(every)} layers of {layers}"


def _of_images(_vision: int, *values: object) -> str | None:
    found = zip(NEUTRAL.items(), values, strict=True)
    given = [f"{name}={value}" for (name, neutral), value in found if value != neutral]
    return f"does not support {', '.join(given)}" if given else None


RULES: tuple[Rule, ...] = (
    model_rule(
        "G40",
        ("rotary_base_local", "window_size", "position_embedding_type", "multi_latent_attention"),
        _local_base,
        why="it is the rotary base of layers with a window",
        fix="Set window_size and position_embedding_type=rope, or unset rotary_base_local.",
        fails=(10000, None, "rope", False),
        passes=(10000, (511, 0), "rope", False),
    ),
    model_rule(
        "G41",
        ("attn_logit_softcapping", "attention_backend", "softmax_type", *EXCLUDED_BY_SOFTCAP),
        _softcap,
        why="no kernel of Transformer Engine caps scores, so that they are computed by unfused attention in the type "
        "of the activations",
        fix="Set attention_backend=auto and switch the others off, or unset attn_logit_softcapping.",
        fails=(50.0, "flash", "vanilla", *[False] * 6),
        passes=(50.0, "auto", "vanilla", *[False] * 6),
    ),
    model_rule(
        "G42",
        ("embedding_multiplier", "residual_multiplier", "logits_multiplier", *_CAPS),
        _positive,
        why="a factor of zero removes a part of the model, and a soft cap is the limit of an absolute value",
        fix="Set positive numbers.",
        fails=(1.0, 1.0, 1.0, 0.0, None),
        passes=(48.0, 1.0, 1.0, 50.0, None),
    ),
    model_rule(
        "G43",
        ("norm_position", "transformer_impl"),
        _norms_after_only,
        why="the linear layers of Transformer Engine contain the norm before them",
        fix="Set transformer_impl=local.",
        fails=("post", "transformer_engine"),
        passes=("post", "local"),
    ),
    model_rule(
        "G44",
        (
            "qk_layernorm_scope",
            "qk_layernorm",
            "normalization",
            "multi_latent_attention",
            "num_query_groups",
            "tensor_model_parallel_size",
        ),
        _all_heads,
        why="it is an RMSNorm over the heads of queries, and of keys, which tensor-parallel ranks share",
        fix="Set qk_layernorm=true, normalization=RMSNorm and a tensor-parallel size that divides num_query_groups, or "
        "qk_layernorm_scope=head.",
        fails=("all_heads", False, "RMSNorm", False, 4, 1),
        passes=("all_heads", True, "RMSNorm", False, 4, 2),
    ),
    model_rule(
        "G45",
        ("transformer", "num_layers", "position_embedding_type", "multi_latent_attention"),
        _unrotated,
        why="it selects the layers without rotary positions",
        fix="Set a divisor of num_layers, or a list with 1 for each layer without rotary positions and 0 for others.",
        fails=({"no_rope_freq": 3}, 4, "rope", False),
        passes=({"no_rope_freq": [0, 0, 0, 1]}, 4, "rope", False),
    ),
    model_rule(
        "G46",
        (
            "residual_branches",
            "norm_position",
            "num_moe_experts",
            "overlap_moe_expert_parallel_comm",
            "cuda_graph_impl",
            "transformer_impl",
        ),
        _parallel,
        why="these layers have norms before attention and a dense MLP, run as a whole, and Transformer Engine fuses "
        "each norm with one linear layer",
        fix="Unset the others, with transformer_impl=local for a shared norm, or set residual_branches=sequential.",
        fails=("parallel", "post", None, False, "none", "local"),
        passes=("parallel", "pre", None, False, "none", "transformer_engine"),
    ),
    model_rule(
        "G47",
        ("layernorm_bias", "normalization", "layernorm_zero_centered_gamma", "transformer_impl"),
        _biasless,
        why="only a plain LayerNorm has a bias, which Transformer Engine's always has",
        fix="Set normalization=LayerNorm and transformer_impl=local, or layernorm_bias=true.",
        fails=(False, "RMSNorm", False, "local"),
        passes=(False, "LayerNorm", False, "local"),
    ),
    family_rule(
        "M26",
        (FAMILY_FIELD, *NEUTRAL),
        _of_images,
        why="the language model of a vision-language model has Megatron Core's layers",
        fix="Remove them.",
        fails=(2, "pre_and_post", *list(NEUTRAL.values())[1:]),
        passes=(2, *NEUTRAL.values()),
    ),
)
"""Rules on variants of layers, embedding and logits."""
