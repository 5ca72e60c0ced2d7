"""Families of Hugging Face models that can be converted, one record each. No torch.

A further family is a record here, a table of weights in `mb_models.hf.weight_tables` unless its names are known, and
an entry in the test's list of models.
"""

from collections.abc import Mapping
from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.errors import HuggingFaceError
from mb_models.hf import weight_tables as tables
from mb_models.hf.expert_families import EXPERT_FAMILIES
from mb_models.hf.family import HuggingFaceFamily
from mb_models.hf.gated_delta_families import QWEN3_NEXT
from mb_models.hf.gemma_families import GEMMA_FAMILIES
from mb_models.hf.hybrid_families import HYBRID_FAMILIES
from mb_models.hf.layer_fields import (
    read_biases,
    read_window,
    write_biases,
    write_layer_windows,
    write_window,
)
from mb_models.hf.parallel_families import PARALLEL_FAMILIES
from mb_models.hf.rotary_fields import rotation, rotation_kind
from mb_models.hf.variant_families import VARIANT_FAMILIES

QWEN_DEFAULTS: Mapping[str, object] = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}


def _read_phi(content: Mapping[str, Any]) -> dict[str, Any]:
    if rotation_kind(content) != "default":
        raise HuggingFaceError(
            f"config.json: the rotary embedding {rotation(content)!r} of a phi3 cannot be converted, because "
            "transformers reads each scaling of it as longrope, which Megatron Core does not have."
        )
    return read_window(content)


def _write_phi(config: GPTModelConfig) -> dict[str, Any]:
    # the default of transformers, 32000, is outside of small vocabularies
    return {**write_window(config), "pad_token_id": None}


LLAMA = HuggingFaceFamily(
    model_type="llama",
    architecture="LlamaForCausalLM",
    layers=tables.LLAMA,
    defaults={"max_position_embeddings": 2048, "attention_bias": False, "mlp_bias": False},
    read=read_biases,
    write=write_biases,
)

MISTRAL = HuggingFaceFamily(
    model_type="mistral",
    architecture="MistralForCausalLM",
    layers=tables.LLAMA,
    defaults={"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    read=read_window,
    write=write_window,
)

QWEN2 = HuggingFaceFamily(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    layers=tables.LLAMA,
    section={"add_qkv_bias": True},
    defaults=QWEN_DEFAULTS,
    read=read_window,
    write=write_layer_windows,
)

QWEN3 = HuggingFaceFamily(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    layers={**tables.LLAMA, **tables.HEAD_NORMS},
    section={"qk_layernorm": True},
    defaults={**QWEN_DEFAULTS, "head_dim": 128},
    read=read_window,
    write=write_layer_windows,
)

PHI3 = HuggingFaceFamily(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    layers=tables.PHI3,
    defaults={
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "original_max_position_embeddings": 4096,
    },
    must_be={"resid_pdrop": (0, None), "embd_pdrop": (0, None)},
    partial_rotation=True,
    read=_read_phi,
    write=_write_phi,
)

FAMILIES: Mapping[str, HuggingFaceFamily] = {
    family.model_type: family
    for family in (
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        *EXPERT_FAMILIES,
        PHI3,
        *GEMMA_FAMILIES,
        *VARIANT_FAMILIES,
        *PARALLEL_FAMILIES,
        *HYBRID_FAMILIES,
        QWEN3_NEXT,
    )
}
"""model_type of config.json -> family; an export takes the first that computes the same as the section."""
