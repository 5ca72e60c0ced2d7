"""Floating-point operations of a token, forward and backward, by part of the model.

A multiply-add counts as two operations, and each product three times: forward, and for the gradients of its two
factors. These are model FLOPs: norms, biases and recomputation are not counted, and of the scores of causal attention
only those that are not masked. Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM" (2021), appendix; Dao, "FlashAttention-2" (2023), section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping

from mb_plan.shape.hybrid_pattern import ATTENTION, DELTA, LATENT, MAMBA, MAMBA_FILTER, MLP
from mb_plan.shape.model_shape import ModelShape, VisionShape
from mb_plan.shape.products import attended_width, experts_of, layer_products

COLOURS = 3
_ORDER = (
    *("attention_linear", "attention_core", "mlp", "router", "experts", "shared_experts", "mamba"),
    *("linear_attention", "mtp", "logits", "encoder"),
)


def flops_per_token(shape: ModelShape, *, seq_length: float) -> dict[str, float]:
    """Return the operations of a token by part. Those of a T5 are per token of the encoder.

    Args:
        shape: Sizes of the model.
        seq_length: Tokens of a sequence, of the encoder if there is one.
    """
    parts: dict[str, float] = {}
    logits = 6.0 * shape.hidden * shape.vocab
    if shape.encoder_layers:
        _add(parts, _encoder_decoder(shape, seq_length, logits))
    else:
        for layer, letters in enumerate(shape.layers):
            _add(parts, _layer(shape, letters, seq_length, windowed=shape.has_window(layer)))
        for letters in shape.ahead:
            windowed = shape.has_window(shape.num_layers - 1)
            own = sum(_layer(shape, letters, seq_length, windowed=windowed).values())
            _add(parts, {"mtp": 12.0 * shape.hidden**2 + own + logits})
        _add(parts, {"logits": logits})
    if shape.vision is not None:
        _add(parts, {"encoder": _image(shape, shape.vision) / seq_length})
    return {name: parts[name] for name in _ORDER if parts.get(name)}


def attended_positions(
    seq_length: float, *, window: tuple[int, int] | None = None, causal: bool = True
) -> float:
    """Return the positions to which a token attends on average: the area of the mask divided by the length.

    A window has so many positions to the left and to the right; -1: all.
    """
    left, right = (-1, -1) if window is None else window
    pairs = _band(seq_length, seq_length if left < 0 else left + 1)
    if not causal:
        pairs += _band(seq_length, seq_length if right < 0 else right)
    return pairs / seq_length


def _band(length: float, reach: float) -> float:
    reach = min(reach, length)
    return length * reach - reach**2 / 2


def _layer(shape: ModelShape, letters: str, seq_length: float, *, windowed: bool) -> dict[str, float]:
    positions = attended_positions(seq_length, window=shape.window if windowed else None)
    parts: dict[str, float] = {}
    for letter in letters:
        _add(parts, _half_layer(shape, letter, positions))
    return parts


def _half_layer(shape: ModelShape, letter: str, positions: float) -> dict[str, float]:
    """Count a layer of a hybrid model, or one of the two halves of a layer of a GPT."""
    parts: dict[str, float] = {}
    for product in layer_products(shape, letter):
        times = experts_of(shape).top_k if product.grouped else 1
        _add(parts, {product.part: 6.0 * times * product.inputs * product.outputs})
    if letter in (ATTENTION, LATENT):
        _add(parts, {"attention_core": 6 * positions * attended_width(shape, letter)})
    elif letter in (MAMBA, DELTA):
        _add(parts, _recurrence(shape, letter))
    return parts


def _recurrence(shape: ModelShape, letter: str) -> dict[str, float]:
    """Count convolution and recurrence, token by token. Chunked kernels do more work.

    Mamba adds the outer product of input and B to the state, and reads it with C: Dao and Gu, "Transformers are SSMs"
    (2024), equation 1. The gated delta rule reads the state with the key, adds a correction, and reads it with the
    query: Yang et al., "Gated Delta Networks" (2024), equation 10.
    """
    pattern = shape.hybrid
    if letter == MAMBA:
        inner, states = pattern.mamba_heads * pattern.mamba_head, 2 * pattern.mamba_groups * pattern.state
        return {"mamba": 6.0 * (inner + states) * MAMBA_FILTER + 12.0 * inner * pattern.state}
    values = pattern.value_heads * pattern.value_head
    mixed = 2 * pattern.key_channels + values
    return {"linear_attention": 6.0 * mixed * pattern.delta_filter + 18.0 * values * pattern.key_head}


def _encoder_decoder(shape: ModelShape, seq_length: float, logits: float) -> dict[str, float]:
    """Count a T5: Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 2.1."""
    decoded = shape.decoder_length or seq_length
    share = decoded / seq_length
    query, key = shape.heads * shape.head, shape.groups * shape.head
    both = attended_positions(seq_length, causal=False)
    parts: dict[str, float] = {}
    for letter in (ATTENTION, MLP):
        _add(parts, _half_layer(shape, letter, both), shape.encoder_layers)
        _add(parts, _half_layer(shape, letter, attended_positions(decoded)), shape.num_layers * share)
    across = {"attention_linear": 12.0 * shape.hidden * query, "attention_core": 12.0 * seq_length * query}
    _add(parts, across, shape.num_layers * share)
    _add(parts, {"attention_linear": 12.0 * shape.hidden * key}, shape.num_layers)
    return {**parts, "logits": logits * share}


def _image(shape: ModelShape, vision: VisionShape) -> float:
    """Count an image: 6 per weight and patch, but 4 for those of the embedding, since an image has no gradient."""
    hidden, patches = vision.hidden, vision.num_patches
    layer = 6 * (4 * hidden**2 + 2 * hidden * vision.ffn) + 12 * hidden * patches
    projection = 6 * vision.projection * (hidden + shape.hidden)
    return patches * float(4 * COLOURS * vision.patch**2 * hidden + vision.layers * layer + projection)


def _add(parts: dict[str, float], more: Mapping[str, float], times: float = 1.0) -> None:
    for name, number in more.items():
        parts[name] = parts.get(name, 0.0) + times * number
