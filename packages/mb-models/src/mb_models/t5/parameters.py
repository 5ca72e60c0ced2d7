"""Parameter count of a T5 by closed formula, without torch and without building the model."""

from mb_models.gpt.parameters import embedding_rows
from mb_models.t5.config import T5ModelConfig


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
