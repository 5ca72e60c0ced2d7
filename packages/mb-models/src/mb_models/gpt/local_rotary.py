"""Rotary positions with a base of their own in layers with a window (Gemma 3)."""

from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.utils import is_layer_window_attention

LOCAL, GLOBAL = 0, 1
"""Positions of the two rotations in the tensor that all layers receive."""


class LocalGlobalRotaryEmbedding(torch.nn.Module):
    """Rotations of layers with a window, and of all others, stacked in one tensor of shape [2, S, 1, 1, D].

    Takes the place of Megatron's rotary embedding in a chunk; `layers_without_window` is the one it replaces.
    """

    def __init__(self, layers_without_window: RotaryEmbedding, layers_with_window: RotaryEmbedding) -> None:
        super().__init__()
        self.layers_without_window, self.layers_with_window = layers_without_window, layers_with_window

    def forward(self, length: int, **options: Any) -> torch.Tensor:
        """Return both rotations of a sequence; the arguments are those of Megatron's."""
        frequencies = (
            self.layers_with_window(length, **options),
            self.layers_without_window(length, **options),
        )
        return torch.stack(frequencies)

    def get_rotary_seq_len(self, *arguments: Any, **options: Any) -> int:
        """Return the length of the sequence, as Megatron's does."""
        length: int = self.layers_without_window.get_rotary_seq_len(*arguments, **options)
        return length


class LocalGlobalSelfAttention(SelfAttention):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's attention with the rotation of its layer, from the two that it receives."""

    def forward(
        self, *arguments: Any, rotary_pos_emb: torch.Tensor | None = None, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention; `rotary_pos_emb` is that of `LocalGlobalRotaryEmbedding`."""
        config = self.config
        windowed = is_layer_window_attention(
            config.window_size, config.window_attn_skip_freq, self.layer_number
        )
        if rotary_pos_emb is not None:
            rotary_pos_emb = rotary_pos_emb[LOCAL if windowed else GLOBAL]
        output: tuple[torch.Tensor, torch.Tensor | None] = super().forward(
            *arguments, rotary_pos_emb=rotary_pos_emb, **options
        )
        return output
