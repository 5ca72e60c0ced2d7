"""Floating-point operations per token, by part.

Only matrix products count: 2 operations per weight and token forward, twice that backward (gradients of the
input and of the weight), hence 6 per weight. With L layers, width h, sequence s, heads times head width q,
key-value groups times head width k, feed-forward width f and vocabulary V, per token:

    attention_linear = 6 L h (q + 2 k) + 6 L q h
    attention_core   = 12 L s q         (half of it if causal)
    mlp              = 6 L h f * 2      (* 3 if gated, as in SwiGLU)
    logits           = 6 h V

Embeddings, norms, softmax, biases and recomputation are not counted: these are model FLOPs, not hardware FLOPs.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM" (2021), appendix, without its recomputation term; with `causal` the upper
half of the score matrix is not counted, as in Dao, "FlashAttention-2" (2023), section 4.1, and in Megatron's
own logs. PaLM's MFU (Chowdhery et al., 2022, appendix B) counts it: compare with causal=False.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsPerToken:
    """Floating-point operations per training token, by part; a multiply-add counts as two operations.

    The numbers include forward and backward: an operation of the forward pass counts three times, once for itself
    and once for the gradient of each of its two factors. Frozen weights, which have none, are not known here.
    """

    attention_linear: float = 0.0
    """Projections of attention, self and cross: query, key, value, output, and low-rank ones."""
    attention_core: float = 0.0
    """Scores and their product with the values."""
    mlp: float = 0.0
    """Dense feed-forward layers."""
    router: float = 0.0
    """Routing of tokens to experts."""
    experts: float = 0.0
    """Routed experts, with the projections into and out of their width."""
    shared_experts: float = 0.0
    """Shared experts and their gate."""
    mamba: float = 0.0
    """State-space layers: projections, convolution and scan."""
    linear_attention: float = 0.0
    """Gated-delta-net layers: projections, convolution and recurrence."""
    mtp: float = 0.0
    """Multi-token prediction: its layers, its projections and its share of the output layer."""
    logits: float = 0.0
    """The output layer."""
    encoder: float = 0.0
    """Vision encoder: patch embedding, encoder layers and projection to the language model."""
    causal: bool = True
    """If True, `attention_core` counts only unmasked positions: half of the score matrix."""

    @property
    def parts(self) -> dict[str, float]:
        """Nonzero parts, by name."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "causal"}
        return {name: number for name, number in numbers.items() if number}

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(self.parts.values())

    def scaled(self, factor: float) -> "FlopsPerToken":
        """Return a copy with every part multiplied by `factor`."""
        parts = {name: factor * number for name, number in self.parts.items()}
        return FlopsPerToken(**parts, causal=self.causal)


def add_up(parts: Iterable[FlopsPerToken], *, causal: bool) -> FlopsPerToken:
    """Return the sum of several counts, part by part."""
    sums: dict[str, float] = {}
    for part in parts:
        for name, number in part.parts.items():
            sums[name] = sums.get(name, 0.0) + number
    return FlopsPerToken(**sums, causal=causal)
