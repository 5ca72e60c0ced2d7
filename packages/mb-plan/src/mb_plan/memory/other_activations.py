"""Activation memory of hybrid models, encoder-decoder models and image encoders.

Layers are counted as in `mb_plan.memory.activations`. The tensors that fused kernels save are those of
`MambaSplitConv1dScanCombinedFn` in mamba-ssm 2 and `ChunkGatedDeltaRuleFunction` in flash-linear-attention 0.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mb_plan.memory.activations import ActivationSettings, Microbatch, layer_bytes
from mb_plan.shape.hybrid_pattern import HybridPattern
from mb_plan.shape.model_shape import ModelShape

DELTA_CHUNK = 64
"""Tokens of a chunk of the gated delta rule, whose matrix of a chunk is saved for each head."""
FLOAT32 = 4


def letter_bytes(
    shape: ModelShape, settings: ActivationSettings, batch: Microbatch, letter: str
) -> Mapping[str, float]:
    """Return the bytes that a layer of a hybrid model saves, by module: norm, residual, and what its letter names."""
    whole = layer_bytes(shape, settings, batch, experts=letter == "E")
    around = {name: whole[name] / 2 for name in ("rest", "layernorm")}  # a layer of a GPT has two norms
    inner: tuple[str, ...] = ()
    if letter == "*":
        inner = ("attention", "mla_up_proj", "core_attn")
    elif letter in "-E":
        inner = ("mlp", "moe", "moe_act", "shared_experts")
    elif shape.pattern is not None:
        return {**around, "mixer": _mixer(shape, shape.pattern, settings, batch, letter)}
    return {**around, **{name: whole[name] for name in inner if name in whole}}


def _mixer(
    shape: ModelShape,
    pattern: HybridPattern,
    settings: ActivationSettings,
    batch: Microbatch,
    letter: str,
) -> float:
    """Return the bytes that a Mamba or a gated-delta mixer saves on one rank, with fused kernels."""
    wide = batch.tokens * settings.number_bytes / shape.tp
    if letter == "M":
        inner = pattern.mamba_heads * pattern.mamba_head
        states = 2 * pattern.mamba_groups * pattern.state
        # the output of the input projection, that of the scan, and that of the gated norm
        return (4 * inner + states + pattern.mamba_heads) * wide
    values = pattern.value_heads * pattern.value_head
    mixed = 2 * pattern.key_channels + values
    # projections and their convolution; normalized keys and queries; the result, its norm and its gate; float32 decays
    widths = 2 * mixed + 2 * pattern.key_channels + 3 * values
    decays = (2 + DELTA_CHUNK) * pattern.value_heads
    return widths * wide + decays * batch.tokens * FLOAT32 / shape.tp


def hybrid_saved(
    shape: ModelShape, settings: ActivationSettings, batch: Microbatch, letters: str
) -> list[Mapping[str, float]]:
    """Return the bytes of each layer of a stage, by module."""
    by_letter = {letter: letter_bytes(shape, settings, batch, letter) for letter in set(letters)}
    return [by_letter[letter] for letter in letters]


def cross_attention_bytes(
    shape: ModelShape, settings: ActivationSettings, *, decoder: Microbatch, encoder: Microbatch
) -> float:
    """Return the bytes that the attention of a decoder layer to the encoder saves, with its norm and residual."""
    e = settings.number_bytes
    narrow = decoder.tokens * e / (shape.tp if settings.sequence_parallel else 1)
    masks = shape.hidden * narrow / e if settings.hidden_dropout else 0.0
    query, key = shape.heads * shape.head, shape.groups * shape.head
    projected = 2 * query * decoder.tokens * e / shape.tp + 2 * key * encoder.tokens * e / shape.tp
    crossed = replace(decoder, seq_length=encoder.seq_length)
    scores = layer_bytes(shape, settings, crossed, experts=False)["core_attn"]
    return 2 * shape.hidden * narrow + masks + projected + scores


def image_bytes(shape: ModelShape, settings: ActivationSettings, *, images: int) -> float:
    """Return the bytes that the encoder and the projection save for the images of a microbatch, one per sequence."""
    vision = shape.vision
    if vision is None:
        return 0.0
    whole = replace(settings, sequence_parallel=False, recompute=None, modules=frozenset())
    batch = Microbatch(tokens=images * vision.num_patches, seq_length=vision.num_patches)
    layer = sum(layer_bytes(shape.image_encoder, whole, batch, experts=False).values())
    wide = batch.tokens * settings.number_bytes
    projection = (vision.hidden + 2 * vision.projection / vision.tp) * wide
    return vision.layers * layer + 2 * vision.hidden * wide + projection
