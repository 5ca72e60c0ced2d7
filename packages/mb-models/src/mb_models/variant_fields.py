"""Fields of attention through a latent space, of YaRN's rotary positions and of multi-token prediction."""

from dataclasses import dataclass
from typing import Literal


@dataclass(kw_only=True)
class LatentAttentionFields:
    """Multi-latent attention: queries, keys and values come from narrow vectors; used when it is switched on."""

    multi_latent_attention: bool = False
    """Compute attention through a latent space (DeepSeek)."""
    q_lora_rank: int | None = 512
    """Width of the queries' latent vector; None: queries come straight from the residual stream."""
    kv_lora_rank: int = 512
    """Width of the latent vector of keys and values."""
    qk_head_dim: int = 128
    """Width of a query's and key's part without positions, for each head."""
    qk_pos_emb_head_dim: int = 64
    """Width of their rotated part."""
    v_head_dim: int = 128
    """Width of a value, for each head."""
    rope_type: Literal["rope", "yarn"] = "yarn"
    """Rotary positions of the rotated part, plain or stretched by YaRN."""
    rotary_scaling_factor: float = 40
    """By how much YaRN stretches."""
    original_max_position_embeddings: int = 4096
    """Tokens of a sequence before the stretching."""
    beta_fast: float = 32
    """Turns over the original length from which on a frequency is left alone."""
    beta_slow: float = 1
    """Turns below which it is stretched in full."""
    mscale: float = 1.0
    """Strength of YaRN's correction of the attention scores."""
    mscale_all_dim: float = 0.0
    """The same for the part without positions."""
    mla_down_proj_fusion: bool = False
    """One projection down for queries, keys and values (Transformer Engine only)."""


@dataclass(kw_only=True)
class PredictionFields:
    """Multi-token prediction: further layers that predict further tokens, for training only."""

    mtp_num_layers: int | None = None
    """Tokens beyond the next that are predicted; None: none."""
    mtp_loss_scaling_factor: float | None = 0.1
    """Weight of their losses, together."""
    mtp_use_repeated_layer: bool = False
    """One layer for all of them."""
    mtp_detach_heads: bool = False
    """Keep their gradients out of the model itself."""


@dataclass(kw_only=True)
class YarnFields:
    """YaRN's rotary positions; used with position_embedding_type "yarn"."""

    yarn_rotary_scaling_factor: float = 1.0
    """By how much sequences are longer than before."""
    yarn_original_max_position_embeddings: int = 4096
    """Tokens of a sequence before."""
    yarn_beta_fast: float = 32.0
    """Turns over the original length from which on a frequency is left alone."""
    yarn_beta_slow: float = 1.0
    """Turns below which it is stretched in full."""
    yarn_mscale: float = 1.0
    """Strength of the correction of the attention scores."""
    yarn_mscale_all_dim: float = 0.0
    """The same for the divisor of that correction; 0: 1."""
    yarn_correction_range_round_to_int: bool = True
    """Round the borders between these frequencies to whole channels."""
