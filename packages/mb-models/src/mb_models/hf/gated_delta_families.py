"""Families with gated-delta layers: Qwen3-Next. No torch."""

from collections.abc import Mapping
from typing import Any

from mb_models.config import DType
from mb_models.errors import HuggingFaceError
from mb_models.hf import weight_tables as tables
from mb_models.hf.family import REQUIRED, HuggingFaceFamily, HybridConversion, settings_of_weights
from mb_models.hf.layer_fields import FULL
from mb_models.hf.rotary_fields import rotation, rotation_kind
from mb_models.hybrid.config import MambaModelConfig, main_layers

LINEAR = "linear_attention"
SIZES = (
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
"""Fields with the same name in config.json and in the section."""


def _pattern(content: Mapping[str, Any]) -> str:
    """Return the pattern, in which each layer is a mixer and a set of experts or an MLP."""
    layers, interval = content["num_hidden_layers"], content["full_attention_interval"]
    kinds = content["layer_types"] or [FULL if (i + 1) % interval == 0 else LINEAR for i in range(layers)]
    if len(kinds) != layers or not set(kinds) <= {FULL, LINEAR}:
        raise HuggingFaceError(
            f"config.json: layer_types={kinds!r} cannot be converted with num_hidden_layers={layers}, because each "
            f"layer is {FULL} or {LINEAR}. Correct the file."
        )
    dense, every = content["mlp_only_layers"] or [], content["decoder_sparse_step"]
    return "".join(
        ("*" if kind == FULL else "G") + ("-" if i in dense or (i + 1) % every else "E")
        for i, kind in enumerate(kinds)
    )


def _read_qwen3_next(content: Mapping[str, Any], dtype: DType) -> MambaModelConfig:
    pattern = _pattern(content)
    rotary = rotation(content)
    base = rotary.get("rope_theta", content["rope_theta"])
    if rotation_kind(content) != "default" or base != int(base):
        raise HuggingFaceError(
            f"config.json: the rotary embedding {rotary!r} cannot be converted, because hybrids have an integer base "
            "and no scaling."
        )
    return MambaModelConfig(
        **{name: content[name] for name in SIZES},
        **settings_of_weights(dtype),
        **(_read_experts(content) if "E" in pattern else {}),
        hybrid_layer_pattern=pattern,
        num_layers=len(pattern),
        hidden_size=content["hidden_size"],
        ffn_hidden_size=content["intermediate_size"],
        num_attention_heads=content["num_attention_heads"],
        num_query_groups=content["num_key_value_heads"],
        kv_channels=content["head_dim"],
        qk_layernorm=True,
        attention_output_gate=True,
        attention_dropout=content["attention_dropout"],
        normalization="RMSNorm",
        layernorm_zero_centered_gamma=True,
        layernorm_epsilon=content["rms_norm_eps"],
        gated_linear_unit=True,
        activation_func="silu",
        position_embedding_type="rope",
        rotary_base=int(base),
        rotary_percent=float(rotary.get("partial_rotary_factor", content["partial_rotary_factor"])),
        seq_length=content["max_position_embeddings"],
        max_position_embeddings=content["max_position_embeddings"],
        vocab_size=content["vocab_size"],
        share_embeddings_and_output_weights=content["tie_word_embeddings"],
        init_method_std=content["initializer_range"],
    )


def _read_experts(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "num_moe_experts": content["num_local_experts"],
        "moe_router_topk": content["num_experts_per_tok"],
        "moe_router_pre_softmax": not content["norm_topk_prob"],
        "moe_aux_loss_coeff": content["router_aux_loss_coef"],
        "moe_ffn_hidden_size": content["moe_intermediate_size"],
        "moe_shared_expert_intermediate_size": content["shared_expert_intermediate_size"],
        "moe_shared_expert_gate": True,
        "moe_token_dispatcher_type": "alltoall",
    }


def _write_qwen3_next(config: MambaModelConfig) -> dict[str, Any]:
    pattern, loss = main_layers(config.hybrid_layer_pattern), config.moe_aux_loss_coeff
    rotary = {
        "rope_type": "default",
        "rope_theta": float(config.rotary_base),
        "partial_rotary_factor": config.rotary_percent,
    }
    experts = {
        "num_experts": config.num_moe_experts,
        "num_experts_per_tok": config.moe_router_topk,
        "norm_topk_prob": not config.moe_router_pre_softmax,
        "router_aux_loss_coef": loss[0] if isinstance(loss, list) else loss,
        "moe_intermediate_size": config.moe_ffn_hidden_size,
        "shared_expert_intermediate_size": config.moe_shared_expert_intermediate_size,
    }
    return {
        **{name: getattr(config, name) for name in SIZES},
        **(experts if config.num_moe_experts is not None else {}),
        "num_hidden_layers": len(pattern) // 2,
        "layer_types": [FULL if letter == "*" else LINEAR for letter in pattern[::2]],
        "mlp_only_layers": [number for number, letter in enumerate(pattern[1::2]) if letter == "-"],
        "decoder_sparse_step": 1,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_hidden_size or 4 * config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_query_groups or config.num_attention_heads,
        "head_dim": config.kv_channels or config.hidden_size // config.num_attention_heads,
        "attention_dropout": config.attention_dropout,
        "hidden_act": "silu",
        "rms_norm_eps": config.layernorm_epsilon,
        "max_position_embeddings": config.max_position_embeddings or config.seq_length,
        "rope_parameters": rotary,
        "rope_theta": rotary["rope_theta"],
        "partial_rotary_factor": config.rotary_percent,
        "tie_word_embeddings": config.share_embeddings_and_output_weights,
        "initializer_range": config.init_method_std,
    }


QWEN3_NEXT = HuggingFaceFamily(
    model_type="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    layers=tables.QWEN3_NEXT,
    defaults={
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "rope_parameters": None,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "layer_types": None,
        "full_attention_interval": 4,
        "mlp_only_layers": None,
        "decoder_sparse_step": 1,
        "num_local_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": True,
        "router_aux_loss_coef": 0.001,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    must_be={
        "hidden_act": ("silu", None),
        "attention_bias": (False, None),
        "use_sliding_window": (False, None),
    },
    aliases={"num_experts": "num_local_experts"},
    hybrid=HybridConversion(
        required=REQUIRED,
        read=_read_qwen3_next,
        write=_write_qwen3_next,
        outside=tables.QWEN3_NEXT_OUTSIDE,
        layers_of_a_layer=2,
    ),
)
