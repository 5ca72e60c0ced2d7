"""Section of a T5, with an encoder and a decoder. No torch."""

from dataclasses import dataclass
from typing import Literal

from mb_models.config import TransformerFields


@dataclass(kw_only=True)
class T5ModelConfig(TransformerFields):
    """An encoder and a decoder on Megatron Core; `num_layers` is the decoder's number of layers.

    Encoder and decoder are pre-norm, with a final norm each, and share the embedding.
    """

    encoder_num_layers: int | None = None
    """Layers of the encoder; None: as many as the decoder's."""
    vocab_size: int | None = None
    """Rows of the embedding, used without padding; None: the padded size of the tokenizer."""
    make_vocab_size_divisible_by: int = 128
    """The tokenizer's vocabulary size is padded to a multiple of this times the tensor-parallel size."""
    seq_length: int = 512
    """Tokens of the encoder's input."""
    decoder_seq_length: int = 128
    """Tokens of the decoder's output."""
    max_position_embeddings: int | None = None
    """Longest sequence, which sizes learned position embeddings; None: the longer of the two."""
    position_embedding_type: Literal["learned_absolute", "rope"] = "learned_absolute"
    """Kind of position embedding."""
    rotary_percent: float = 1.0
    """Fraction of each head that is rotated."""
    seq_len_interpolation_factor: float | None = None
    """Divide positions by this (linear interpolation of rotary positions)."""
    share_embeddings_and_output_weights: bool = True
    """Tie the output layer to the embedding; it then has a separate bias."""
    fp16_lm_cross_entropy: bool = False
    """Compute the loss in float16 instead of float32."""
    parallel_output: bool = True
    """Keep logits split over tensor-parallel ranks."""
