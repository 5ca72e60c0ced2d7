"""Parameter counts of the model families by closed formulas, without torch and without building the model."""

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from mb_models.config import GPTModelConfig
from mb_models.gpt.variant_fields import LayerVariantFields
from mb_models.hybrid.config import MambaModelConfig, main_layers, mamba_heads, mtp_layers
from mb_models.mimo.config import MimoModelConfig
from mb_models.t5.config import T5ModelConfig


def parameter_count(config: GPTModelConfig, *, vocab_size: int | None = None) -> int:
    """Return the number of weights of the complete model, over all ranks; a shared weight counts once.

    With h the hidden size, d the head's width, a query heads and g key/value heads, a layer without biases has
    h d (2 a + 2 g) weights in attention; an MLP of width f has 2 h f, or 3 h f if gated; a norm has h (twice that
    for LayerNorm). With `moe_latent_size` l, the experts have l in place of h, and a layer 2 h l more. A layer of
    multi-token prediction is one more such layer with a projection from 2 h to h and three norms. `vocab_size` is
    the number of rows of the embedding, padding included, and defaults to `config.vocab_size`.

    Raises:
        ValueError: no vocabulary size is given.
    """
    rows = embedding_rows(config.vocab_size if vocab_size is None else vocab_size)
    kinds = expert_layers(config)
    layers = sum(_layer(config, experts=experts) for experts in kinds)
    ahead = (
        min(1, config.mtp_num_layers or 0) if config.mtp_use_repeated_layer else config.mtp_num_layers or 0
    )
    if ahead:
        layers += ahead * _further_token(config, experts=kinds[-1])
    positions = config.max_position_embeddings or config.seq_length
    return (
        rows * config.hidden_size * (1 if config.share_embeddings_and_output_weights else 2)
        + (positions * config.hidden_size if config.position_embedding_type == "learned_absolute" else 0)
        + layers
        + _norm(config, config.hidden_size)
    )


def embedding_rows(vocab_size: int | None) -> int:
    """Return the rows of the embedding.

    Raises:
        ValueError: they are not known.
    """
    if vocab_size is None:
        raise ValueError(
            "model.vocab_size: not set and no vocab_size given, because the embedding's size is unknown. Pass "
            "vocab_size."
        )
    return vocab_size


def expert_layers(config: GPTModelConfig) -> list[bool]:
    """Return for each layer, in order, whether its MLP is a set of experts.

    Raises:
        ValueError: moe_layer_freq is not positive, or its length is not the number of layers.
    """
    if config.num_moe_experts is None:
        return [False] * config.num_layers
    if isinstance(config.moe_layer_freq, int):
        if config.moe_layer_freq < 1:
            raise ValueError(
                f"model.moe_layer_freq: is {config.moe_layer_freq}, because every n-th layer has experts. "
                "Set 1 or more, or one entry per layer."
            )
        return [layer % config.moe_layer_freq == 0 for layer in range(config.num_layers)]
    if len(config.moe_layer_freq) != config.num_layers:
        raise ValueError(
            f"model.moe_layer_freq: lists {len(config.moe_layer_freq)} layers of {config.num_layers}, because it "
            "selects the layers with experts. Set one entry per layer."
        )
    return [bool(flag) for flag in config.moe_layer_freq]


def _norm(config: GPTModelConfig, width: int) -> int:
    # Sections of hybrids lack it.
    biased = not isinstance(config, LayerVariantFields) or config.layernorm_bias
    return 2 * width if config.normalization == "LayerNorm" and biased else width


def _linear(inputs: int, outputs: int, *, bias: bool) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _layer(config: GPTModelConfig, *, experts: bool) -> int:
    mlp = _experts(config) if experts else _mlp(config, config.ffn_hidden_size or 4 * config.hidden_size)
    norms = 4 if config.norm_position == "pre_and_post" else 2
    norms -= config.residual_branches == "parallel_shared_norm"
    return _attention(config) + mlp + norms * _norm(config, config.hidden_size)


def _further_token(config: GPTModelConfig, *, experts: bool) -> int:
    hidden = config.hidden_size
    return 2 * hidden * hidden + 3 * _norm(config, hidden) + _layer(config, experts=experts)


def _attention(config: GPTModelConfig) -> int:
    sinks = config.num_attention_heads if config.softmax_type == "learnable" else 0
    return sinks + (_latent(config) if config.multi_latent_attention else _heads(config))


def _latent(config: GPTModelConfig) -> int:
    hidden, heads, keys = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    queries = heads * (config.qk_head_dim + config.qk_pos_emb_head_dim)
    down = 0 if config.q_lora_rank is None else hidden * config.q_lora_rank
    norms = _norm(config, keys + (config.q_lora_rank or 0)) if config.qk_layernorm else 0
    return (
        down
        + (config.q_lora_rank or hidden) * queries
        + hidden * (keys + config.qk_pos_emb_head_dim)
        + keys * heads * (config.qk_head_dim + config.v_head_dim)
        + _linear(heads * config.v_head_dim, hidden, bias=config.add_bias_linear)
        + norms
    )


def _heads(config: GPTModelConfig) -> int:
    width = config.kv_channels or config.hidden_size // config.num_attention_heads
    groups = config.num_query_groups or config.num_attention_heads
    inner = width * config.num_attention_heads
    qkv_bias = config.add_bias_linear or config.add_qkv_bias
    return (
        _linear(
            config.hidden_size, inner * (1 + config.attention_output_gate) + 2 * width * groups, bias=qkv_bias
        )
        + _linear(inner, config.hidden_size, bias=config.add_bias_linear)
        + (_head_norms(config, width=width, groups=groups) if config.qk_layernorm else 0)
    )


def _head_norms(config: GPTModelConfig, *, width: int, groups: int) -> int:
    if not isinstance(config, LayerVariantFields) or config.qk_layernorm_scope == "head":
        return 2 * _norm(config, width)
    return _norm(config, width * config.num_attention_heads) + _norm(config, width * groups)


def _mlp(config: GPTModelConfig, width: int, *, outer: int | None = None) -> int:
    inner, outer = 2 * width if config.gated_linear_unit else width, outer or config.hidden_size
    return _linear(outer, inner, bias=config.add_bias_linear) + _linear(
        width, outer, bias=config.add_bias_linear
    )


def _experts(config: GPTModelConfig) -> int:
    experts = config.num_moe_experts or 0
    width = config.moe_ffn_hidden_size or config.ffn_hidden_size or 4 * config.hidden_size
    shared = config.moe_shared_expert_intermediate_size
    latent: Any = config.transformer.get("moe_latent_size")
    into, out_of = (
        (_linear(*sizes, bias=config.add_bias_linear) if latent else 0)
        for sizes in ((config.hidden_size, latent), (latent, config.hidden_size))
    )
    return (
        _linear(config.hidden_size, experts, bias=config.add_bias_linear)
        + into
        + out_of
        + experts * _mlp(config, width, outer=latent)
        + (_mlp(config, shared) if shared else 0)
        + (config.hidden_size if shared and config.moe_shared_expert_gate else 0)
    )


def t5_parameter_count(config: T5ModelConfig, *, vocab_size: int | None = None) -> int:
    """Return the number of weights of the complete model, over all ranks; a shared weight counts once.

    With h the hidden size, w the heads' width together and f the MLP's inner width, an attention without biases has
    4 h w weights, an MLP 2 h f, or 3 h f if gated; a norm has h (twice that for LayerNorm). A layer of the encoder has
    one attention and two norms, one of the decoder two and three; each half has a final norm. A tied output layer has
    a bias for each row of the embedding. `vocab_size` is the number of rows, padding included, and defaults to
    `config.vocab_size`.

    Raises:
        ValueError: no vocabulary size is given.
    """
    rows = embedding_rows(config.vocab_size if vocab_size is None else vocab_size)
    hidden, bias = config.hidden_size, config.add_bias_linear
    norm = hidden if config.normalization == "RMSNorm" else 2 * hidden
    inner = (config.kv_channels or hidden // config.num_attention_heads) * config.num_attention_heads
    attention = 4 * hidden * inner + (3 * inner + hidden if bias else 0)
    self_attention = attention + (3 * inner if config.add_qkv_bias and not bias else 0)
    width = config.ffn_hidden_size or 4 * hidden
    into = 2 * width if config.gated_linear_unit else width
    mlp = hidden * (into + width) + (into + hidden if bias else 0)
    learned = config.position_embedding_type == "learned_absolute"
    longest = config.max_position_embeddings or max(config.seq_length, config.decoder_seq_length)
    return (
        rows * hidden
        + (rows if config.share_embeddings_and_output_weights else rows * hidden)
        + (longest * hidden if learned else 0)
        + (config.encoder_num_layers or config.num_layers) * (self_attention + mlp + 2 * norm)
        + config.num_layers * (self_attention + attention + mlp + 3 * norm)
        + 2 * norm
    )


IMAGE_CHANNELS = 3


def mimo_parameter_count(config: MimoModelConfig, *, vocab_size: int | None = None) -> int:
    """Return the number of weights of all modules, over all ranks; a shared weight counts once.

    With h the encoder's width, f that of its MLPs, p pixels of a patch's side and n patches of an image, the encoder
    has 3 p p h + h weights in the patch embedding, n h of positions, 4 h (h + 1) + f (2 h + 1) + h in a
    layer, 2 h for each of its two norms, and a final norm. The projection leads from h over its inner width to the
    language model's hidden size. The language model is counted as by `parameter_count`.

    Raises:
        ValueError: as `parameter_count`.
    """
    width, patch = config.vision_hidden_size, config.patch_size
    inner = config.vision_ffn_hidden_size or 4 * width
    norm = 2 * width
    layer = 4 * width * (width + 1) + inner * (2 * width + 1) + width + 2 * norm
    return (
        parameter_count(config, vocab_size=vocab_size)
        + IMAGE_CHANNELS * patch * patch * width
        + width
        + config.image_tokens * width
        + config.vision_num_layers * layer
        + norm
        + _projection(config)
    )


def _projection(config: MimoModelConfig) -> int:
    inner = config.projector_hidden_size or config.hidden_size
    return inner * (config.vision_hidden_size + 1) + config.hidden_size * (inner + 1)


MAMBA_FILTER = 4
"""Kernel size, in tokens, of the convolution of a Mamba layer in Megatron Core."""


def hybrid_parameter_count(config: MambaModelConfig, *, vocab_size: int | None = None) -> int:
    """Return the number of weights of the complete model, over all ranks; a shared weight counts once.

    Every layer has one norm. With h the hidden size, a Mamba layer of n heads of width p, g groups and state s has
    h (2 n p + 2 g s + n) weights into the scan, n p h out of it, five for each channel n p + 2 g s of its convolution,
    3 n of its own and n p in its inner norm. A gated-delta layer with q channels of keys and v of values, in k value
    heads of width w, has h (2 q + 2 v + 2 k), v h, a filter for each channel 2 q + v, 2 k and an inner norm of w.
    Attention, MLP and experts are as in a GPT. Each token beyond the next adds its layers, three norms and 2 h h,
    or only the first with `mtp_use_repeated_layer`.

    Raises:
        ValueError: no vocabulary size is given.
    """
    rows = embedding_rows(config.vocab_size if vocab_size is None else vocab_size)
    pattern = config.hybrid_layer_pattern
    ahead = mtp_layers(pattern)[: 1 if config.mtp_use_repeated_layer else None]
    hidden, norm = config.hidden_size, _norm(_like_gpt(config), config.hidden_size)
    positions = config.max_position_embeddings or config.seq_length
    return (
        rows * hidden * (1 if config.share_embeddings_and_output_weights else 2)
        + (positions * hidden if config.position_embedding_type == "learned_absolute" else 0)
        + sum(_layers(config, letters) for letters in (main_layers(pattern), *ahead))
        + norm
        + len(ahead) * (3 * norm + 2 * hidden * hidden)
    )


def _like_gpt(config: MambaModelConfig) -> GPTModelConfig:
    """Return the section with the type of the formulas that read only fields of both families."""
    return cast(GPTModelConfig, config)


def _layers(config: MambaModelConfig, letters: str) -> int:
    gpt, counts = _like_gpt(config), Counter(letters)
    sizes: dict[str, Callable[[MambaModelConfig], int]] = {
        "M": _mamba,
        "G": _gated_delta,
        "*": lambda config: _attention(gpt),
        "-": lambda config: _mlp(gpt, config.ffn_hidden_size or 4 * config.hidden_size),
        "E": lambda config: _experts(gpt),
    }
    norm = _norm(gpt, config.hidden_size)
    return sum(number * (sizes[letter](config) + norm) for letter, number in counts.items())


def _mamba(config: MambaModelConfig) -> int:
    heads = mamba_heads(config.hidden_size, config.mamba_num_heads, config.mamba_head_dim)
    inner, states = heads * config.mamba_head_dim, 2 * config.mamba_num_groups * config.mamba_state_dim
    into = config.hidden_size * (2 * inner + states + heads)
    return into + (inner + states) * (MAMBA_FILTER + 1) + 3 * heads + inner + inner * config.hidden_size


def _gated_delta(config: MambaModelConfig) -> int:
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    heads, width = config.linear_num_value_heads, config.linear_value_head_dim
    into = config.hidden_size * (2 * keys + 2 * heads * width + 2 * heads)
    filters = (2 * keys + heads * width) * config.linear_conv_kernel_dim
    return into + filters + 2 * heads + _norm(_like_gpt(config), width) + heads * width * config.hidden_size
