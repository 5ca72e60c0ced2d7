"""Fields of multi-latent attention, multi-token prediction, YaRN's rotary positions and variants of a layer."""

from dataclasses import dataclass
from typing import Literal


@dataclass(kw_only=True)
class LatentAttentionFields:
    """Multi-latent attention: queries, keys and values from low-rank latent vectors; used when it is enabled."""

    multi_latent_attention: bool = False
    """Compute attention through a latent space (DeepSeek)."""
    q_lora_rank: int | None = 512
    """Width of the queries' latent vector; None: queries are computed from the residual stream directly."""
    kv_lora_rank: int = 512
    """Width of the latent vector of keys and values."""
    qk_head_dim: int = 128
    """Width of the part without positions of a query and a key, for each head."""
    qk_pos_emb_head_dim: int = 64
    """Width of the rotated part of a query and a key, for each head."""
    v_head_dim: int = 128
    """Width of a value, for each head."""
    rope_type: Literal["rope", "yarn"] = "yarn"
    """Rotary positions of the rotated part, plain or scaled by YaRN."""
    rotary_scaling_factor: float = 40
    """Scaling factor of YaRN."""
    original_max_position_embeddings: int = 4096
    """Sequence length before the scaling by YaRN."""
    beta_fast: float = 32
    """Frequencies with at least this many rotations over the original length are not scaled."""
    beta_slow: float = 1
    """Frequencies with fewer rotations than this are scaled fully."""
    mscale: float = 1.0
    """Strength of YaRN's correction of the attention scores."""
    mscale_all_dim: float = 0.0
    """Strength of YaRN's correction of the attention scores for the part without positions."""
    mla_down_proj_fusion: bool = False
    """Use one down projection for queries, keys and values (Transformer Engine only)."""


@dataclass(kw_only=True)
class PredictionFields:
    """Multi-token prediction: additional layers that predict further tokens, for training only."""

    mtp_num_layers: int | None = None
    """Number of predicted tokens beyond the next; None: none."""
    mtp_loss_scaling_factor: float | None = 0.1
    """Weight of the sum of the losses of multi-token prediction."""
    mtp_use_repeated_layer: bool = False
    """Use one layer for all further tokens."""
    mtp_detach_heads: bool = False
    """Detach the gradients of multi-token prediction from the main model."""


@dataclass(kw_only=True)
class YarnFields:
    """YaRN's rotary positions; used with position_embedding_type "yarn"."""

    yarn_rotary_scaling_factor: float = 1.0
    """Ratio of the sequence length to the original one."""
    yarn_original_max_position_embeddings: int = 4096
    """Original sequence length."""
    yarn_beta_fast: float = 32.0
    """Frequencies with at least this many rotations over the original length are not scaled."""
    yarn_beta_slow: float = 1.0
    """Frequencies with fewer rotations than this are scaled fully."""
    yarn_mscale: float = 1.0
    """Strength of the correction of the attention scores."""
    yarn_mscale_all_dim: float = 0.0
    """Strength of the divisor of that correction; 0: the divisor is 1."""
    yarn_correction_range_round_to_int: bool = True
    """Round the boundaries between these frequencies to integer channels."""


@dataclass(kw_only=True)
class LayerVariantFields:
    """Variants of layers, embedding and logits that Megatron Core lacks (Gemma, OLMo, Granite, Cohere)."""

    norm_position: Literal["pre", "post", "pre_and_post"] = "pre"
    """Position of a layer's norms: before attention and MLP, after them (before the residual addition), or both."""
    residual_branches: Literal["sequential", "parallel", "parallel_shared_norm"] = "sequential"
    """Input of the MLP: the sum of the residual stream and attention, or attention's input, with a norm of its own or
    with attention's.
    """
    layernorm_bias: bool = True
    """A bias in every LayerNorm."""
    qk_layernorm_scope: Literal["head", "all_heads"] = "head"
    """Values that a norm of queries and keys averages over; used with qk_layernorm."""
    rotary_base_local: int | None = None
    """Base of the rotary frequencies in layers with a window, which are not scaled; None: rotary_base."""
    attn_logit_softcapping: float | None = None
    """Soft cap c of the attention scores x, c tanh(x / c); None: no cap."""
    final_logit_softcapping: float | None = None
    """Soft cap of the logits; None: no cap."""
    embedding_multiplier: float = 1.0
    """Factor on the embeddings of the tokens."""
    residual_multiplier: float = 1.0
    """Factor on the outputs of attention and MLP, before the residual addition."""
    logits_multiplier: float = 1.0
    """Factor on the logits, before a soft cap."""
    unpadded_vocab_size: int | None = None
    """Rows of vocab_size that are tokens; further ones have no probability. None: every row has one, as in Megatron."""
