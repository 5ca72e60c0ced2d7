"""The section of a hybrid model: layers of several kinds, in the order of a pattern. No torch."""

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
    """Groups of heads that read and write at the same place of the state."""
    mamba_num_heads: int | None = None
    """Heads; None: twice hidden_size / mamba_head_dim."""
    mamba_training_ssm_states_dtype: DType | None = None
    """Type in which the states between chunks are kept; None: params_dtype (newer mamba-ssm only)."""


@dataclass(kw_only=True)
class GatedDeltaFields:
    """Sizes of gated-delta layers (linear attention)."""

    linear_conv_kernel_dim: int = 4
    """Tokens that the convolution before the scan sees."""
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

    `num_layers` is the number of layers of the pattern, each letter one layer: an attention layer has no MLP.
    """

    hybrid_layer_pattern: str
    """M Mamba, G gated delta, * attention, - MLP, E experts; | between pipeline stages; /... for each further token."""
    vocab_size: int | None = None
    """Rows of the embedding, kept as they are; None: the tokenizer's size, padded."""
    make_vocab_size_divisible_by: int = 128
    """A vocabulary that comes from the tokenizer is padded to a multiple of this times the tensor-parallel size."""
    seq_length: int = 1024
    """Tokens of a training sequence."""
    max_position_embeddings: int | None = None
    """Longest sequence the model can take, which sizes learned position embeddings; None: seq_length."""
    position_embedding_type: Literal["none", "rope", "learned_absolute"] = "none"
    """How positions enter; Mamba and gated-delta layers know the order of tokens without."""
    rotary_base: int = 10000
    """Base of the rotary frequencies."""
    rotary_percent: float = 1.0
    """Share of each head that is rotated."""
    seq_len_interpolation_factor: float | None = None
    """Divide positions by this (linear interpolation of rotary positions)."""
    share_embeddings_and_output_weights: bool = False
    """Tie the output layer to the embedding."""
    fp16_lm_cross_entropy: bool = False
    """Compute the loss in float16 instead of float32."""
    parallel_output: bool = True
    """Leave logits split over tensor-parallel ranks."""


HybridModelConfig = MambaModelConfig
"""The same section by the name that Megatron Core now gives the family."""


def main_layers(pattern: str) -> str:
    """Return the layers of the model itself, one letter each, without the borders of stages."""
    return pattern.split("/")[0].replace("|", "")


def mtp_layers(pattern: str) -> list[str]:
    """Return the layers that predict each further token: as many entries as tokens beyond the next."""
    return pattern.split("/")[1:]


def mamba_heads(hidden_size: int, heads: int | None, width: int) -> int:
    """Return the number of Mamba heads that Megatron builds."""
    return heads if heads is not None else 2 * hidden_size // width
