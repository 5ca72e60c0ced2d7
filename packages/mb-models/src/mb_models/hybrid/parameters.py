"""Parameter count of a hybrid model by closed formula, without torch and without building the model."""

from collections import Counter
from collections.abc import Callable
from typing import cast

from mb_models.config import GPTModelConfig
from mb_models.gpt.parameters import _attention, _experts, _mlp, _norm, embedding_rows
from mb_models.hybrid.config import MambaModelConfig, main_layers, mamba_heads, mtp_layers

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
