"""Families of Gemma: zero-centred norms, scaled embeddings, norms after attention and MLP, soft caps. No torch."""

import math
from collections.abc import Mapping
from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.hf import weight_tables as tables
from mb_models.hf.family import HuggingFaceFamily
from mb_models.hf.layer_fields import WINDOW, read_window, windows_but_every, write_layer_types
from mb_models.hf.rotary_fields import local_base, write_local_rotary

GELU = "gelu_pytorch_tanh"
_SECTION: Mapping[str, object] = {"layernorm_zero_centered_gamma": True, "activation_func": "fast_gelu"}
_DEFAULTS: Mapping[str, object] = {
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "hidden_act": GELU,
    "hidden_activation": GELU,
}
_MUST_BE: Mapping[str, tuple[object, ...]] = {
    "hidden_act": (GELU, "gelu", None),  # released files of the first models have "gelu" and mean the other
    "hidden_activation": (GELU, None),
    "use_bidirectional_attention": (False, None),
}
_SCALED: Mapping[str, object] = {
    **_DEFAULTS,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}


def _read_embedding(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"embedding_multiplier": content["hidden_size"] ** 0.5}


def _write_activation(_config: GPTModelConfig) -> dict[str, Any]:
    return {"hidden_act": GELU, "hidden_activation": GELU}


def _read_gemma2(content: Mapping[str, Any]) -> dict[str, Any]:
    return _read_scaled(content, pattern=2)


def _read_scaled(content: Mapping[str, Any], *, pattern: int) -> dict[str, Any]:
    """Return the further fields of a section; each n-th layer has no window unless `layer_types` is set."""
    kinds = content["layer_types"] or windows_but_every(content, pattern)
    return {
        **_read_embedding(content),
        **read_window({**content, "layer_types": kinds}),
        "softmax_scale": content["query_pre_attn_scalar"] ** -0.5,
        "attn_logit_softcapping": content["attn_logit_softcapping"],
        "final_logit_softcapping": content["final_logit_softcapping"],
    }


def _write_scaled(config: GPTModelConfig) -> dict[str, Any]:
    scale = config.softmax_scale or (config.kv_channels or 1) ** -0.5
    return {
        **_write_activation(config),
        **write_layer_types(config),
        "query_pre_attn_scalar": query_scalar(scale),
        "attn_logit_softcapping": config.attn_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
    }


def query_scalar(scale: float) -> float | int:
    """Return the number whose inverse root is a factor on attention scores, an integer if it is close to one."""
    exact = scale**-2
    return round(exact) if math.isclose(exact, round(exact), rel_tol=1e-9) else exact


def _read_gemma3(content: Mapping[str, Any]) -> dict[str, Any]:
    section_fields = _read_scaled(content, pattern=content["sliding_window_pattern"])
    return {
        **section_fields,
        "rotary_base_local": local_base(content) if "window_size" in section_fields else None,
    }


def _write_gemma3(config: GPTModelConfig) -> dict[str, Any]:
    rotary = write_local_rotary(config)
    base = rotary["rope_parameters"][WINDOW]["rope_theta"]
    return {**_write_scaled(config), **rotary, "rope_local_base_freq": base}  # of earlier versions


GEMMA = HuggingFaceFamily(
    model_type="gemma",
    architecture="GemmaForCausalLM",
    layers=tables.LLAMA,
    section=_SECTION,
    defaults={**_DEFAULTS, "num_key_value_heads": 16},
    must_be=_MUST_BE,
    read=_read_embedding,
    write=_write_activation,
)

GEMMA2 = HuggingFaceFamily(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    layers=tables.SANDWICH,
    section={**_SECTION, "norm_position": "pre_and_post"},
    defaults={**_SCALED, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    must_be=_MUST_BE,
    read=_read_gemma2,
    write=_write_scaled,
)

GEMMA3 = HuggingFaceFamily(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    layers={**tables.SANDWICH, **tables.HEAD_NORMS},
    section={**_SECTION, "norm_position": "pre_and_post", "qk_layernorm": True},
    defaults={
        **_SCALED,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window_pattern": 6,
    },
    must_be={**_MUST_BE, "attn_logit_softcapping": (None,)},  # transformers ignores it
    local_rotation=True,
    read=_read_gemma3,
    write=_write_gemma3,
)

GEMMA_FAMILIES = (GEMMA, GEMMA2, GEMMA3)
