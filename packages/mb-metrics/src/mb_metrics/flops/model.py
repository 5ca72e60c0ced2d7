"""FLOPs per token of a complete model, derived from its configuration."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from mb_metrics.flops import layers
from mb_metrics.flops.model_shape import FlopsModelShape, UnknownFlopsError
from mb_metrics.flops.per_token import FlopsPerToken, add_up
from mb_schema.attention_masks import attended_positions

_PIPELINE_CUT, _MTP_SEPARATOR = "|", "/"


def model_flops_per_token(
    model: object,
    *,
    seq_length: float | Collection[float] | Mapping[float, float],
    vocab_size: int | None = None,
    decoder_seq_length: int | None = None,
    causal: bool = True,
) -> FlopsPerToken:
    """Return the model FLOPs per token, forward and backward, by part.

    `model` is any object with Megatron's field names, or a mapping of them: GPT, with grouped or latent
    attention, sliding windows, experts, linear attention, multi-token prediction; hybrid by `hybrid_layer_pattern`;
    T5; a vision-language GPT with one image per sequence. Matrix products and convolutions count; embeddings, norms,
    activations, biases and recomputation do not: these are model FLOPs, not hardware FLOPs. The source of each
    formula is given with its layer.

    Args:
        model: The configuration; it is not modified.
        seq_length: Tokens per sequence. For sequences of different lengths, also in packs: their lengths, or a mapping
            of each length to the number of sequences that have it. The sum of squared lengths divided by the sum of
            lengths is equivalent, except with sliding windows.
        vocab_size: Rows of the output layer, padding included; None: the model's `vocab_size`.
        decoder_seq_length: Tokens per sequence of the decoder of a T5, whose encoder has `seq_length`. FLOPs are then
            per token of the encoder: those of a pair of sequences, divided by `seq_length`. None: the model's
            `decoder_seq_length`, if it has one.
        causal: If True, count half of the score matrix, because an efficient kernel skips the masked half. If False,
            count the full matrix, as PaLM's MFU does.

    Raises:
        UnknownFlopsError: a size is missing or not positive, or there is no formula for a kind of layer.
    """
    shape = FlopsModelShape(model)
    lengths: Mapping[float, float] = (
        seq_length
        if isinstance(seq_length, Mapping)
        else Counter(seq_length if isinstance(seq_length, Collection) else [seq_length])
    )
    if not lengths or min(lengths) <= 0:
        raise UnknownFlopsError(
            f"model_flops_per_token: sequence lengths must be positive (seq_length={seq_length!r}). The FLOPs of "
            "attention depend on them. Pass the tokens per sequence, or the lengths of the packed documents."
        )
    vocab = shape.size("vocab_size") if vocab_size is None else vocab_size
    logits = FlopsPerToken(logits=6 * shape.hidden * vocab)
    decoder_seq_length = (
        shape.value("decoder_seq_length") if decoder_seq_length is None else decoder_seq_length
    )
    if decoder_seq_length is not None:
        parts = _encoder_decoder(shape, lengths, decoder_seq_length, logits, causal=causal)
    elif shape.flag("hybrid_layer_pattern"):
        parts = _hybrid(shape, lengths, logits, causal=causal)
    else:
        parts = _gpt(shape, lengths, logits, causal=causal)
    if shape.flag("vision_num_layers"):
        mean_length = sum(length * number for length, number in lengths.items()) / sum(lengths.values())
        parts.append(vision_encoder(shape).scaled(1 / mean_length))
    return add_up(parts, causal=causal)


def gpt_flops_per_token(  # noqa: PLR0913 - a shape, each size by name
    *,
    num_layers: int,
    hidden_size: int,
    ffn_hidden_size: int,
    num_attention_heads: int,
    seq_length: int,
    vocab_size: int,
    num_query_groups: int | None = None,
    kv_channels: int | None = None,
    gated_mlp: bool = False,
    causal: bool = True,
) -> FlopsPerToken:
    """Return the model FLOPs per token of a dense GPT, as used for TFLOP/s and MFU.

    Matrix products count 6 operations per weight and token; the docstring of `mb_metrics.flops.per_token` has the
    closed formula and its sources. Other architectures: `model_flops_per_token`.

    Args:
        num_layers: Transformer layers.
        hidden_size: Width of the residual stream.
        ffn_hidden_size: Width inside the feed-forward layer (of each half, when gated).
        num_attention_heads: Query heads.
        seq_length: Tokens per sequence.
        vocab_size: Rows of the output layer, padding included.
        num_query_groups: Key-value heads; None: equal to the number of query heads.
        kv_channels: Width of a head; None: hidden_size // num_attention_heads.
        gated_mlp: True if the feed-forward layer is gated and has three matrices.
        causal: True if a token attends only to earlier positions.

    Raises:
        UnknownFlopsError: a size is not positive.
    """
    model = {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "ffn_hidden_size": ffn_hidden_size,
        "num_attention_heads": num_attention_heads,
        "num_query_groups": num_query_groups,
        "kv_channels": kv_channels,
        "gated_linear_unit": gated_mlp,
        "vocab_size": vocab_size,
    }
    return model_flops_per_token(model, seq_length=seq_length, causal=causal)


def _positions(
    shape: FlopsModelShape, lengths: Mapping[float, float], *, causal: bool
) -> Mapping[bool, float]:
    """Return the positions that a token attends to, by whether the layer has a sliding window."""
    return {
        windowed: attended_positions(lengths, window=shape.window if windowed else None, causal=causal)
        for windowed in (False, True)
    }


def _gpt(
    shape: FlopsModelShape, lengths: Mapping[float, float], logits: FlopsPerToken, *, causal: bool
) -> list[FlopsPerToken]:
    positions = _positions(shape, lengths, causal=causal)
    last = shape.size("num_layers") - 1

    def layer_parts(layer: int, *, windowed: bool) -> FlopsPerToken:
        if shape.has_linear_attention(layer):
            mixer = layers.gated_delta_net(shape)
        else:
            mixer = layers.attention(shape, positions=positions[windowed])
        feed_forward = layers.mixture(shape) if shape.has_experts(layer) else layers.mlp(shape)
        return add_up([mixer, feed_forward], causal=causal)

    parts = [layer_parts(layer, windowed=shape.has_window(layer)) for layer in range(last + 1)]
    for depth in range(shape.prediction_depths):
        # Megatron builds a depth like the last layer, and numbers it from the start again
        number = 0 if shape.flag("mtp_use_repeated_layer") else depth
        own = layer_parts(last, windowed=shape.has_window(number))
        parts.append(_prediction(shape, [own], logits))
    return [*parts, logits]


def _hybrid(
    shape: FlopsModelShape, lengths: Mapping[float, float], logits: FlopsPerToken, *, causal: bool
) -> list[FlopsPerToken]:
    positions = _positions(shape, lengths, causal=causal)
    kinds: dict[str, Callable[[int], FlopsPerToken]] = {
        "*": lambda layer: layers.attention(shape, positions=positions[shape.has_window(layer)]),
        "+": lambda layer: layers.latent_attention(shape, positions=positions[shape.has_window(layer)]),
        "-": lambda _: layers.mlp(shape),
        "E": lambda _: layers.mixture(shape),
        "M": lambda _: layers.mamba(shape),
        "G": lambda _: layers.gated_delta_net(shape),
    }
    main, *predictions = str(shape.value("hybrid_layer_pattern")).split(_MTP_SEPARATOR)

    def count(pattern: str) -> list[FlopsPerToken]:
        unknown = set(pattern) - kinds.keys() - {_PIPELINE_CUT}
        if unknown:
            raise UnknownFlopsError(
                f"model.hybrid_layer_pattern: no formula for layers {sorted(unknown)} ({pattern!r}). Supported layers "
                f"are {', '.join(kinds)}. Pass the FLOPs per token explicitly."
            )
        own_layers = pattern.replace(_PIPELINE_CUT, "")
        return [kinds[symbol](layer) for layer, symbol in enumerate(own_layers)]

    return [*count(main), *(_prediction(shape, count(each), logits) for each in predictions), logits]


def _prediction(
    shape: FlopsModelShape, own_layers: list[FlopsPerToken], logits: FlopsPerToken
) -> FlopsPerToken:
    """Count one depth of multi-token prediction: projection of two joined streams, its layers, the output layer."""
    joined = 6 * 2 * shape.hidden * shape.hidden
    return FlopsPerToken(mtp=joined + sum(layer.total for layer in own_layers) + logits.total)


def _encoder_decoder(
    shape: FlopsModelShape,
    lengths: Mapping[float, float],
    decoder_length: float,
    logits: FlopsPerToken,
    *,
    causal: bool,
) -> list[FlopsPerToken]:
    """Count a T5 per encoder token; there are `share` decoder tokens per encoder token.

    Source: Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 2.1, with the products of
    `gpt_flops_per_token`.
    """
    if len(lengths) != 1:
        raise UnknownFlopsError(
            f"model_flops_per_token: packed sequences of a T5 are not supported ({len(lengths)} lengths and "
            f"decoder_seq_length={decoder_length}). The decoder length of each sequence is unknown. Pass one length."
        )
    (encoder_length,) = lengths
    share = decoder_length / encoder_length
    layers_of = {
        half: shape.size(f"{half}_num_layers", shape.size("num_layers")) for half in ("encoder", "decoder")
    }
    seen = attended_positions({encoder_length: 1}, causal=False)
    encoder = [layers.attention(shape, positions=seen), layers.mlp(shape)]
    seen = attended_positions({decoder_length: 1}, causal=causal)
    decoder = [
        layers.attention(shape, positions=seen),
        layers.cross_attention(shape, encoder_tokens=encoder_length),
        layers.mlp(shape),
    ]
    per_decoder_token = [*layers_of["decoder"] * decoder, logits]
    return [
        *layers_of["encoder"] * encoder,
        *layers_of["decoder"] * [layers.cross_key_value(shape)],
        *(part.scaled(share) for part in per_decoder_token),
    ]


COLOURS = 3


def vision_encoder(shape: FlopsModelShape) -> FlopsPerToken:
    """Count one image, forward and backward: 6 per weight and patch, 12 per channel and pair of patches.

    The weights of the patch embedding count 4, because the image itself receives no gradient. Every patch attends to
    every other patch. The projection consists of two matrices.

    Raises:
        UnknownFlopsError: a size is missing, or a patch is larger than the image.
    """
    hidden, patch = shape.size("vision_hidden_size"), shape.size("patch_size")
    inner = shape.size("vision_ffn_hidden_size", 4 * hidden)
    patches = (shape.size("image_size") // patch) ** 2
    layer = 6 * (4 * hidden * hidden + 2 * hidden * inner) + 12 * hidden * patches
    projection = 6 * shape.size("projector_hidden_size", shape.hidden) * (hidden + shape.hidden)
    per_patch = 4 * COLOURS * patch * patch * hidden + shape.size("vision_num_layers") * layer + projection
    return FlopsPerToken(encoder=patches * per_patch)
