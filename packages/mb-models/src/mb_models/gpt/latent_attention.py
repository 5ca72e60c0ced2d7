"""Latent attention whose queries are not compressed, as in DeepSeek-V2 Lite and Moonlight."""

import copy
from typing import Any

from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig


def use_uncompressed_queries(block: TransformerBlockSubmodules, config: TransformerConfig) -> None:
    """Replace the attention in the specs of a stage's layers, in place, if a configuration has such queries."""
    if config.multi_latent_attention and config.qk_layernorm and config.q_lora_rank is None:
        for spec in block.layer_specs:
            spec.submodules.self_attention.module = UncompressedQueryAttention


class UncompressedQueryAttention(MLASelfAttention):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's latent attention, with a norm of the latent keys and values and none of the queries.

    With `qk_layernorm` and without `q_lora_rank`, Megatron Core 0.19.2 builds a norm of the hidden state into the
    projection of the queries, which no published model has, and which its own local layers do not support.
    """

    def _resolve_qk_norm_config(self, submodules: Any) -> dict[str, Any]:
        config = vars(self)["config"]
        self.config = copy.copy(config)
        self.config.q_lora_rank = config.hidden_size
        try:
            resolved = super()._resolve_qk_norm_config(submodules)
        finally:
            self.config = config
        return {**resolved, "linear_q_proj": submodules.linear_q_proj, "q_layernorm": IdentityOp}
