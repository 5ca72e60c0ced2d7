"""Section of a hybrid model, with layers of several kinds in the order of a pattern. No torch."""

from dataclasses import dataclass
from typing import Literal

from mb_models.config import DType, TransformerFields


@dataclass(kw_only=True)
class StateSpaceFields:
    """Sizes of Mamba 2 layers."""

    mamba_state_dim: int = 128
    """Channels of the state, for each channel of a head."""
    mamba_head_dim: int = 64
    """Channels of a head."""
    mamba_num_groups: int = 8
    """Groups of heads that share the projections into and out of the state."""
    mamba_num_heads: int | None = None
    """Heads; None: twice hidden_size / mamba_head_dim."""
    mamba_training_ssm_states_dtype: DType | None = None
    """Data type of the states between chunks; None: params_dtype (newer mamba-ssm only)."""


@dataclass(kw_only=True)
class GatedDeltaFields:
    """Sizes of gated-delta layers (linear attention)."""

    linear_conv_kernel_dim: int = 4
    """Kernel size, in tokens, of the convolution before the scan."""
    linear_key_head_dim: int = 128
    """Channels of a key or query."""
    linear_value_head_dim: int = 128
    """Channels of a value."""
    linear_num_key_heads: int = 16
    """Key and query heads."""
    linear_num_value_heads: int = 32
    """Value heads, a multiple of the key heads."""


@dataclass(kw_only=True)
class MambaModelConfig(StateSpaceFields, GatedDeltaFields, TransformerFields):
    """A language model whose layers follow a pattern: Mamba, gated-delta, attention, MLP, experts.

    `num_layers` is the number of letters of the pattern, each of which is one layer: an attention layer has no MLP.
    """

    hybrid_layer_pattern: str
    """M Mamba, G gated delta, * attention, - MLP, E experts; | between stages; /... for each token beyond the next."""
    mamba_chunk_size: int = 128
    """Tokens that the scan of a Mamba layer processes at once; the result does not depend on it."""
    vocab_size: int | None = None
    """Rows of the embedding, used without padding; None: the padded size of the tokenizer."""
    unpadded_vocab_size: int | None = None
    """Rows of vocab_size that are tokens; further ones have no probability. None: every row has one, as in Megatron."""
    make_vocab_size_divisible_by: int = 128
    """The tokenizer's vocabulary size is padded to a multiple of this times the tensor-parallel size."""
    seq_length: int = 1024
    """Tokens of a training sequence."""
    max_position_embeddings: int | None = None
    """Maximum sequence length of the model, which sizes learned position embeddings; None: seq_length."""
    position_embedding_type: Literal["none", "rope", "learned_absolute"] = "none"
    """Kind of position embedding; Mamba and gated-delta layers encode the order of tokens without one."""
    rotary_base: float = 10000
    """Base of the rotary frequencies."""
    rotary_percent: float = 1.0
    """Fraction of each head that is rotated."""
    seq_len_interpolation_factor: float | None = None
    """Divide positions by this (linear interpolation of rotary positions)."""
    share_embeddings_and_output_weights: bool = False
    """Tie the output layer to the embedding."""
    fp16_lm_cross_entropy: bool = False
    """Compute the loss in float16 instead of float32."""
    parallel_output: bool = True
    """Keep logits split over tensor-parallel ranks."""


HybridModelConfig = MambaModelConfig
"""Alias with Megatron Core's newer name of the family."""


def main_layers(pattern: str) -> str:
    """Return the layers of the model itself, one letter each, without stage boundaries."""
    return pattern.split("/")[0].replace("|", "")


def mtp_layers(pattern: str) -> list[str]:
    """Return the layers of multi-token prediction, one entry for each token beyond the next."""
    return pattern.split("/")[1:]


def mamba_heads(hidden_size: int, heads: int | None, width: int) -> int:
    """Return the number of Mamba heads that Megatron builds."""
    return heads if heads is not None else 2 * hidden_size // width
