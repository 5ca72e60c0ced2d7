"""Rules on the shape of a model: layers, widths, positions, and further fields of Megatron's TransformerConfig."""

from collections.abc import Sequence
from dataclasses import fields

from mb_models.config import GPTModelConfig
from mb_models.rules.widths import has_attention
from mb_schema.rule_kinds import model_rule
from mb_schema.rules import Rule, rules_in

UNSUPPORTED_FIELDS = {
    "cache_mla_latents": "it is a cache of generation, with which latent attention rejects training",
    "experimental_attention_variant": "its layers need a separate block specification",
    "heterogeneous_block_specs": "layers of different shapes need a separate configuration class",
    "is_hybrid_model": "hybrid models are another class",
    "init_model_with_meta_device": "parameters are created on their device",
    "hybrid_context_parallel": "every sequence is split over all context-parallel ranks",
    "use_mup": "the optimizer's learning rates are not scaled by width",
}
"""Fields of Megatron's TransformerConfig that the GPT provider does not support, and the reason."""


@model_rule(
    "G01",
    why="a model without layers, width or heads cannot be built",
    fix="Set all three to positive numbers.",
    fails={"num_layers": 0, "hidden_size": 64, "num_attention_heads": 4},
    passes={"num_layers": 2},
)
def _sizes_not_positive(num_layers, hidden_size, num_attention_heads):
    if min(num_layers, hidden_size, num_attention_heads) >= 1:
        return None
    return (
        f"every size must be at least 1 (num_layers={num_layers}, hidden_size={hidden_size}, "
        f"num_attention_heads={num_attention_heads})"
    )


@model_rule(
    "G03",
    why="the width of a head is hidden_size / num_attention_heads unless kv_channels is set",
    fix="Change hidden_size or num_attention_heads, or set kv_channels.",
    fails={"hidden_size": 100, "num_attention_heads": 8},
    passes={"kv_channels": 16},
)
def _hidden_not_divided_by_heads(
    hidden_size, num_attention_heads, kv_channels, multi_latent_attention, hybrid_layer_pattern
):
    if (
        multi_latent_attention
        or kv_channels is not None
        or num_attention_heads < 1
        or hidden_size % num_attention_heads == 0
        or not has_attention(hybrid_layer_pattern)
    ):
        return None
    return (
        f"must be divisible by the heads (hidden_size={hidden_size}, "
        f"num_attention_heads={num_attention_heads}, kv_channels unset)"
    )


@model_rule(
    "G04",
    why="every position of a training sequence needs an embedding",
    fix="Raise max_position_embeddings to seq_length, or leave it unset.",
    fails={"max_position_embeddings": 512, "seq_length": 1024},
    passes={"max_position_embeddings": 2048},
)
def _fewer_positions_than_tokens(max_position_embeddings, seq_length):
    if max_position_embeddings is None or max_position_embeddings >= seq_length:
        return None
    return (
        f"is shorter than a training sequence (max_position_embeddings={max_position_embeddings}, "
        f"seq_length={seq_length})"
    )


@model_rule(
    "G05",
    why="it needs three rows of position ids, which text batches do not have",
    fix='Use "rope", "yarn", "learned_absolute" or "none".',
    fails={"position_embedding_type": "mrope"},
    passes={"position_embedding_type": "rope"},
)
def _unsupported_positions(position_embedding_type):
    return f"{position_embedding_type!r} is not supported" if position_embedding_type == "mrope" else None


@model_rule(
    "G09",
    why="it only holds fields of Megatron's TransformerConfig that the section lacks and a GPT supports",
    fix="Remove or correct them.",
    fails={"transformer": {"use_mup": True}, "num_layers": 4, "position_embedding_type": "rope"},
    passes={"transformer": {"glu_linear_offset": 1.0, "no_rope_freq": [0, 0, 0, 1]}},
)
def _unusable_transformer_fields(transformer, num_layers, position_embedding_type, multi_latent_attention):
    repeated = sorted({item.name for item in fields(GPTModelConfig)} & transformer.keys())
    if repeated:
        return f"{', '.join(repeated)}: set the field of the model section itself"
    private = sorted(name for name in transformer if name.startswith("_"))
    if private:
        return f"{', '.join(private)}: private to Megatron"
    unsupported = [f"{name}: {why}" for name, why in UNSUPPORTED_FIELDS.items() if transformer.get(name)]
    no_rope_freq = transformer.get("no_rope_freq")
    if no_rope_freq and (position_embedding_type not in ("rope", "yarn") or multi_latent_attention):
        unsupported.append(
            f"no_rope_freq: no layer is rotated with position_embedding_type={position_embedding_type}, "
            f"latent={multi_latent_attention}"
        )
    elif isinstance(no_rope_freq, int) and num_layers and (no_rope_freq < 0 or num_layers % no_rope_freq):
        unsupported.append(f"no_rope_freq: {no_rope_freq} does not divide {num_layers} layers")
    elif isinstance(no_rope_freq, Sequence) and len(no_rope_freq) != num_layers:
        unsupported.append(f"no_rope_freq: lists {len(no_rope_freq)} layers of {num_layers}")
    return "; ".join(unsupported) or None


RULES: tuple[Rule, ...] = rules_in(globals())
