"""Rules on the shape of a model: layers, widths, positions, and further fields of Megatron's TransformerConfig."""

from collections.abc import Mapping, Sequence
from dataclasses import fields

from mb_models.config import GPTModelConfig
from mb_models.rules.widths import has_attention
from mb_schema.rule_kinds import rule, within
from mb_schema.rules import Rule

UNSUPPORTED_FIELDS = {
    "experimental_attention_variant": "its layers need a separate block specification",
    "heterogeneous_block_specs": "layers of different shapes need a separate configuration class",
    "is_hybrid_model": "hybrid models are another class",
    "init_model_with_meta_device": "parameters are created on their device",
    "hybrid_context_parallel": "every sequence is split over all context-parallel ranks",
    "use_mup": "the optimizer's learning rates are not scaled by width",
}
"""Fields of Megatron's TransformerConfig that the GPT provider does not support, and the reason."""


def _sizes_not_positive(layers: int, hidden: int, heads: int) -> str | None:
    if min(layers, hidden, heads) >= 1:
        return None
    return f"every size must be at least 1 (num_layers={layers}, hidden_size={hidden}, num_attention_heads={heads})"


def _hidden_not_divided_by_heads(
    hidden: int, heads: int, kv_channels: int | None, latent: bool | None, pattern: str | None
) -> str | None:
    if latent or kv_channels is not None or heads < 1 or hidden % heads == 0 or not has_attention(pattern):
        return None
    return f"must be divisible by the heads (hidden_size={hidden}, num_attention_heads={heads}, kv_channels unset)"


def _fewer_positions_than_tokens(positions: int | None, seq_length: int) -> str | None:
    if positions is None or positions >= seq_length:
        return None
    return (
        f"is shorter than a training sequence (max_position_embeddings={positions}, seq_length={seq_length})"
    )


def _unsupported_positions(kind: str) -> str | None:
    return f"{kind!r} is not supported" if kind == "mrope" else None


def _unusable_transformer_fields(
    extra: Mapping[str, object], layers: int | None, kind: str | None, latent: bool | None
) -> str | None:
    repeated = sorted({item.name for item in fields(GPTModelConfig)} & extra.keys())
    if repeated:
        return f"{', '.join(repeated)}: set the field of the model section itself"
    private = sorted(name for name in extra if name.startswith("_"))
    if private:
        return f"{', '.join(private)}: private to Megatron"
    unsupported = [f"{name}: {why}" for name, why in UNSUPPORTED_FIELDS.items() if extra.get(name)]
    no_rope_freq = extra.get("no_rope_freq")
    if no_rope_freq and (kind not in ("rope", "yarn") or latent):
        unsupported.append(
            f"no_rope_freq: no layer is rotated with position_embedding_type={kind}, latent={latent}"
        )
    elif isinstance(no_rope_freq, int) and layers and (no_rope_freq < 0 or layers % no_rope_freq):
        unsupported.append(f"no_rope_freq: {no_rope_freq} does not divide {layers} layers")
    elif isinstance(no_rope_freq, Sequence) and len(no_rope_freq) != layers:
        unsupported.append(f"no_rope_freq: lists {len(no_rope_freq)} layers of {layers}")
    return "; ".join(unsupported) or None


RULES: tuple[Rule, ...] = (
    rule(
        "G01",
        within("model", "num_layers hidden_size num_attention_heads"),
        _sizes_not_positive,
        why="a model without layers, width or heads cannot be built",
        fix="Set all three to positive numbers.",
        fails=(0, 64, 4),
        passes=(2, 64, 4),
    ),
    rule(
        "G03",
        within(
            "model", "hidden_size num_attention_heads kv_channels multi_latent_attention hybrid_layer_pattern"
        ),
        _hidden_not_divided_by_heads,
        why="the width of a head is hidden_size / num_attention_heads unless kv_channels is set",
        fix="Change hidden_size or num_attention_heads, or set kv_channels.",
        fails=(100, 8, None, False, None),
        passes=(100, 8, 16, False, None),
    ),
    rule(
        "G04",
        within("model", "max_position_embeddings seq_length"),
        _fewer_positions_than_tokens,
        why="every position of a training sequence needs an embedding",
        fix="Raise max_position_embeddings to seq_length, or leave it unset.",
        fails=(512, 1024),
        passes=(2048, 1024),
    ),
    rule(
        "G05",
        "model.position_embedding_type",
        _unsupported_positions,
        why="it needs three rows of position ids, which text batches do not have",
        fix='Use "rope", "yarn", "learned_absolute" or "none".',
        fails=("mrope",),
        passes=("rope",),
    ),
    rule(
        "G09",
        within("model", "transformer num_layers position_embedding_type multi_latent_attention"),
        _unusable_transformer_fields,
        why="it only holds fields of Megatron's TransformerConfig that the section lacks and a GPT supports",
        fix="Remove or correct them.",
        fails=({"use_mup": True}, 4, "rope", False),
        passes=({"glu_linear_offset": 1.0, "no_rope_freq": [0, 0, 0, 1]}, 4, "rope", False),
    ),
)
