"""Parameter count of a GPT by closed formula, without torch and without building the model."""

from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.gpt.variant_fields import LayerVariantFields


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
