"""Hybrid families: Mamba 2, and Nemotron-H with Mamba, attention, MLP and expert layers. No torch."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mb_models.config import DType
from mb_models.errors import HuggingFaceError
from mb_models.hf import weight_tables as tables
from mb_models.hf.family import HuggingFaceFamily, HybridConversion, settings_of_weights
from mb_models.hf.routing_fields import read_groups, unequal_sigmoid
from mb_models.hybrid.config import MambaModelConfig, main_layers, mamba_heads

LETTERS: Mapping[str, str] = {
    "linear_attention": "M",
    "mamba": "M",
    "moe": "E",
    "full_attention": "*",
    "attention": "*",
    "mlp": "-",
}
"""Kind of a layer in `layers_block_type`, of transformers 5 and before -> its letter in a pattern."""
_NAMES = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
_UNBOUNDED: tuple[object, ...] = ([0.0, {"__float__": "Infinity"}], [0.0, math.inf], (0.0, math.inf), None)
"""Spellings of a time step without limits."""

_STATE_SPACE: Mapping[str, object] = {
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "expand": 2,
    "n_groups": 8,
    "time_step_min": 0.001,
    "time_step_max": 0.1,
    "time_step_floor": 1e-4,
    "time_step_rank": None,
    "chunk_size": 256,
    "residual_in_fp32": True,
    "rescale_prenorm_residual": False,
}
_MIXER: Mapping[str, tuple[object, ...]] = {
    "layer_norm_epsilon": (1e-5,),
    "conv_kernel": (4, None),
    "use_conv_bias": (True, None),
    "use_bias": (False, None),
    "time_step_limit": _UNBOUNDED,
}
"""What Megatron Core's Mamba layers have; the epsilon is that of their inner norm."""


UNLIMITED_STEP = 1e-30
"""`time_step_min` without an effect; transformers takes the logarithm of it."""


def _limited_steps(content: Mapping[str, Any]) -> Sequence[str]:
    """Return the lower limit of time steps in transformers' Nemotron-H, which Megatron Core has not."""
    least = content.get("time_step_min", _STATE_SPACE["time_step_min"])
    if least <= UNLIMITED_STEP:
        return ()
    return (
        f"time_step_min={least!r}: transformers raises smaller time steps to it, and Megatron Core does not",
    )


def _shared(content: Mapping[str, Any], dtype: DType) -> dict[str, Any]:
    """Return the fields of a section that both families have."""
    return {
        "hidden_size": content["hidden_size"],
        "vocab_size": content["vocab_size"],
        "mamba_num_groups": content["n_groups"],
        "init_method_std": content["initializer_range"],
        "normalization": "RMSNorm",
        "layernorm_epsilon": content["layer_norm_epsilon"],
        **settings_of_weights(dtype),
    }


def _written(config: MambaModelConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.hidden_size,
        "n_groups": config.mamba_num_groups,
        "tie_word_embeddings": config.share_embeddings_and_output_weights,
        "initializer_range": config.init_method_std,
        "layer_norm_epsilon": config.layernorm_epsilon,
    }


def _read_mamba2(content: Mapping[str, Any], dtype: DType) -> MambaModelConfig:
    layers = content["num_hidden_layers"]
    return MambaModelConfig(
        **_shared(content, dtype),
        share_embeddings_and_output_weights=content["tie_word_embeddings"],
        hybrid_layer_pattern="M" * layers,
        num_layers=layers,
        num_attention_heads=1,  # of no layer
        activation_func="silu",
        attention_dropout=0.0,
        mamba_state_dim=content["state_size"],
        mamba_head_dim=content["head_dim"],
        mamba_num_heads=content["num_heads"],
    )


def _unequal_width(content: Mapping[str, Any]) -> Sequence[str]:
    """Return the width inside a layer if it is not a whole multiple of the hidden size, which transformers rejects."""
    inner, hidden, expand = (
        content["num_heads"] * content["head_dim"],
        content["hidden_size"],
        content["expand"],
    )
    if inner == expand * hidden and isinstance(expand, int):
        return ()
    return (f"expand={expand} (num_heads * head_dim is {inner}, and hidden_size {hidden})",)


def _write_mamba2(config: MambaModelConfig) -> dict[str, Any]:
    heads = mamba_heads(config.hidden_size, config.mamba_num_heads, config.mamba_head_dim)
    whole, rest = divmod(heads * config.mamba_head_dim, config.hidden_size)
    return {
        **_written(config),
        "expand": heads * config.mamba_head_dim / config.hidden_size if rest else whole,
        "num_hidden_layers": config.num_layers,
        "state_size": config.mamba_state_dim,
        "head_dim": config.mamba_head_dim,
        "num_heads": heads,
    }


def _pattern(content: Mapping[str, Any]) -> str:
    """Return the pattern of the layers.

    Raises:
        HuggingFaceError: a kind of layer is unknown.
    """
    pattern = content["hybrid_override_pattern"]
    kinds = content["layers_block_type"]
    letters = [LETTERS.get(kind, "?") for kind in kinds] if kinds else list(pattern or "")
    if not letters or not set(letters) <= set(_NAMES):
        raise HuggingFaceError(
            f"config.json: layers_block_type={kinds!r}, hybrid_override_pattern={pattern!r} cannot be converted, "
            f"because layers are one of {', '.join(LETTERS)}. Correct the file."
        )
    return "".join(letters)


def _read_nemotron(content: Mapping[str, Any], dtype: DType) -> MambaModelConfig:
    pattern = _pattern(content)
    return MambaModelConfig(
        **_shared(content, dtype),  # transformers has separate weights, whatever tie_word_embeddings is
        hybrid_layer_pattern=pattern,
        num_layers=len(pattern),
        num_attention_heads=content["num_attention_heads"],
        num_query_groups=content["num_key_value_heads"] or content["num_attention_heads"],
        kv_channels=content["head_dim"],
        ffn_hidden_size=content["intermediate_size"],
        activation_func="squared_relu",
        attention_dropout=content["attention_dropout"],
        seq_length=content["max_position_embeddings"],
        max_position_embeddings=content["max_position_embeddings"],
        mamba_state_dim=content["ssm_state_size"],
        mamba_head_dim=content["mamba_head_dim"],
        mamba_num_heads=content["mamba_num_heads"],
        **(_read_experts(content) if "E" in pattern else {}),
    )


def _read_experts(content: Mapping[str, Any]) -> dict[str, Any]:
    scaling, latent = float(content["routed_scaling_factor"]), content["moe_latent_size"]
    return {
        "num_moe_experts": content["n_routed_experts"],
        "moe_router_topk": content["num_experts_per_tok"],
        "moe_ffn_hidden_size": content["moe_intermediate_size"],
        "moe_shared_expert_intermediate_size": content["moe_shared_expert_intermediate_size"],
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_dtype": "fp32",
        "moe_router_topk_scaling_factor": None if scaling == 1.0 else scaling,
        "moe_token_dispatcher_type": "alltoall",
        **({} if latent is None else {"transformer": {"moe_latent_size": latent}}),
        **read_groups(content),
    }


def _write_nemotron(config: MambaModelConfig) -> dict[str, Any]:
    pattern = main_layers(config.hybrid_layer_pattern)
    sizes = {
        "n_routed_experts": config.num_moe_experts,
        "num_experts_per_tok": config.moe_router_topk,
        "moe_intermediate_size": config.moe_ffn_hidden_size,
        "moe_shared_expert_intermediate_size": config.moe_shared_expert_intermediate_size,
        "routed_scaling_factor": config.moe_router_topk_scaling_factor or 1.0,
        "n_group": config.moe_router_num_groups or 1,
        "topk_group": config.moe_router_group_topk or 1,
        "norm_topk_prob": config.moe_router_topk > 1,
        "moe_latent_size": config.transformer.get("moe_latent_size"),
    }
    return {
        **_written(config),
        "layers_block_type": [_NAMES.get(letter, letter) for letter in pattern],
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_query_groups or config.num_attention_heads,
        "head_dim": config.kv_channels or config.hidden_size // config.num_attention_heads,
        "intermediate_size": config.ffn_hidden_size or 4 * config.hidden_size,
        "attention_dropout": config.attention_dropout,
        "max_position_embeddings": config.max_position_embeddings or config.seq_length,
        "ssm_state_size": config.mamba_state_dim,
        "mamba_head_dim": config.mamba_head_dim,
        "mamba_num_heads": mamba_heads(config.hidden_size, config.mamba_num_heads, config.mamba_head_dim),
        "time_step_min": UNLIMITED_STEP,
        **({} if config.num_moe_experts is None else sizes),
    }


MAMBA2 = HuggingFaceFamily(
    model_type="mamba2",
    architecture="Mamba2ForCausalLM",
    layers=tables.MAMBA,
    defaults={**_STATE_SPACE, "initializer_range": 0.1},
    must_be={**_MIXER, "hidden_act": ("silu", None)},
    unequal=_unequal_width,
    hybrid=HybridConversion(
        required=("num_hidden_layers", "hidden_size", "num_heads", "head_dim", "state_size", "vocab_size"),
        read=_read_mamba2,
        write=_write_mamba2,
        outside=tables.HYBRID_OUTSIDE,
    ),
)

NEMOTRON_H = HuggingFaceFamily(
    model_type="nemotron_h",
    architecture="NemotronHForCausalLM",
    layers=tables.NEMOTRON_H,
    defaults={
        **_STATE_SPACE,
        "layers_block_type": None,
        "hybrid_override_pattern": None,
        "num_hidden_layers": None,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_dropout": 0.0,
        "max_position_embeddings": 4096,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "moe_shared_expert_overlap": True,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "num_logits_to_keep": 1,
        "use_mamba_kernels": True,
        "mamba_ssm_cache_dtype": None,
        "moe_latent_size": None,
        "mtp_layers_block_type": None,
        "mtp_hybrid_override_pattern": None,
        "keep_mtp_spec_in_bf16": True,
        "hidden_dropout": 0.0,
        "rope_theta": None,  # its attention has no positions
        "partial_rotary_factor": None,
    },
    must_be={
        **_MIXER,
        "mlp_hidden_act": ("relu2", None),
        "mamba_hidden_act": ("silu", None),
        "attention_bias": (False, None),
        "mlp_bias": (False, None),
        "mamba_proj_bias": (False, None),
        "sliding_window": (None,),
        "norm_eps": (1e-5, None),
        "rms_norm_eps": (1e-5, None),
        "n_shared_experts": (1, None),
        "norm_topk_prob": (True, False, None),
    },
    aliases={
        "num_local_experts": "n_routed_experts",
        "layer_types": "layers_block_type",
        "attention_head_dim": "head_dim",
    },
    unequal=unequal_sigmoid,
    notices=_limited_steps,
    hybrid=HybridConversion(
        required=(
            *("hidden_size", "num_attention_heads", "intermediate_size", "ssm_state_size"),
            *("mamba_num_heads", "mamba_head_dim", "vocab_size"),
        ),
        read=_read_nemotron,
        write=_write_nemotron,
        outside=tables.HYBRID_OUTSIDE,
    ),
)

HYBRID_FAMILIES = (MAMBA2, NEMOTRON_H)
"""All hybrid families."""
