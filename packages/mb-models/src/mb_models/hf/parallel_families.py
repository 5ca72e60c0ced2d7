"""Families whose attention and MLP read the same input: Cohere and GPT-NeoX. No torch."""

from collections.abc import Mapping
from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.hf import weight_tables as tables
from mb_models.hf.family import HuggingFaceFamily
from mb_models.hf.layer_fields import (
    FULL,
    read_window,
    windows_but_every,
    without_rotation,
    write_layer_types,
)
from mb_models.hf.rotary_fields import write_rotary

_COHERE_SECTION: Mapping[str, object] = {
    "normalization": "LayerNorm",
    "layernorm_bias": False,
    "residual_branches": "parallel_shared_norm",
    "rotary_interleaved": True,
}
_COHERE_DEFAULTS: Mapping[str, object] = {
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "logit_scale": 0.0625,
}
_EPSILON = {"layer_norm_eps": "rms_norm_eps"}
_NEOX_NAMES = {**_EPSILON, "rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}


def _read_cohere(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"logits_multiplier": float(content["logit_scale"])}


def _write_cohere(config: GPTModelConfig) -> dict[str, Any]:
    return {"logit_scale": config.logits_multiplier, "layer_norm_eps": config.layernorm_epsilon}


def _read_cohere2(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the windows; layers without one have no rotary positions."""
    kinds = content["layer_types"] or windows_but_every(content, content["sliding_window_pattern"])
    flags = [int(kind == FULL) for kind in kinds]
    return {
        **_read_cohere(content),
        **read_window({**content, "layer_types": kinds}),
        **without_rotation(flags),
    }


def _write_cohere2(config: GPTModelConfig) -> dict[str, Any]:
    return {**_write_cohere(config), **write_layer_types(config)}


def _read_neox(content: Mapping[str, Any]) -> dict[str, Any]:
    parallel = content["use_parallel_residual"]
    return {
        "hidden_dropout": content["hidden_dropout"],
        "residual_branches": "parallel" if parallel else "sequential",
    }


def _write_neox(config: GPTModelConfig) -> dict[str, Any]:
    share, rotary = config.rotary_percent, write_rotary(config)["rope_parameters"]
    return {
        "hidden_act": "gelu",
        "layer_norm_eps": config.layernorm_epsilon,
        "hidden_dropout": config.hidden_dropout,
        "use_parallel_residual": config.residual_branches == "parallel",
        "attention_bias": True,
        "rope_parameters": {**rotary, "partial_rotary_factor": share},
        "rotary_pct": share,
        "rotary_emb_base": float(config.rotary_base),
    }


COHERE = HuggingFaceFamily(
    model_type="cohere",
    architecture="CohereForCausalLM",
    layers=tables.COHERE,
    section=_COHERE_SECTION,
    defaults={**_COHERE_DEFAULTS, "rope_theta": 5e5},
    must_be={"use_qk_norm": (False, None)},
    aliases=_EPSILON,
    unread=frozenset(_EPSILON.values()),
    read=_read_cohere,
    write=_write_cohere,
)

COHERE2 = HuggingFaceFamily(
    model_type="cohere2",
    architecture="Cohere2ForCausalLM",
    layers=tables.COHERE,
    section=_COHERE_SECTION,
    defaults={**_COHERE_DEFAULTS, "sliding_window": 4096, "sliding_window_pattern": 4, "layer_types": None},
    aliases=_EPSILON,
    unread=frozenset(_EPSILON.values()),
    read=_read_cohere2,
    write=_write_cohere2,
)

GPT_NEOX = HuggingFaceFamily(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    layers=tables.GPT_NEOX,
    outside=tables.GPT_NEOX_OUTSIDE,
    section={
        "normalization": "LayerNorm",
        "gated_linear_unit": False,
        "activation_func": "gelu",
        "add_bias_linear": True,
    },
    defaults={
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "hidden_dropout": 0.0,
        "use_parallel_residual": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.25,
    },
    must_be={"hidden_act": ("gelu",), "attention_bias": (True,)},
    aliases=_NEOX_NAMES,
    unread=frozenset(_NEOX_NAMES.values()),
    partial_rotation=True,
    read=_read_neox,
    write=_write_neox,
)

PARALLEL_FAMILIES = (COHERE, COHERE2, GPT_NEOX)
