"""Transformer layer whose attention and MLP read the same input (GPT-NeoX, Cohere)."""

from typing import Any

from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor


class ParallelTransformerLayer(TransformerLayer):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's layer with the sum x + attention(norm(x)) + mlp(norm(x)).

    The MLP has a norm of its own unless the specification has none before it; then it has that of attention, which is
    computed twice.
    """

    _layer_input: Tensor | None = None
    """Input of the layer, from the forward pass of attention to that of the MLP."""

    def _forward_attention(self, hidden_states: Tensor, *arguments: Any, **options: Any) -> Any:
        self._layer_input = hidden_states
        return super()._forward_attention(hidden_states, *arguments, **options)

    def _forward_pre_mlp_layernorm(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the MLP, and the residual stream, to which attention is already added."""
        layer_input, self._layer_input = self._layer_input, None
        if isinstance(self.pre_mlp_layernorm, IdentityOp):
            return self.input_layernorm(layer_input), hidden_states
        return super()._forward_pre_mlp_layernorm(layer_input), hidden_states
