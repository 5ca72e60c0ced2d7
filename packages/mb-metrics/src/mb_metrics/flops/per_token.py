"""Floating-point operations per token, by part, and a closed formula for a dense GPT.

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


def gpt_flops_per_token(  # noqa: PLR0913 - a shape, each size by name
    *,
    num_layers: int,
    hidden_size: int,
    ffn_hidden_size: int,
    num_attention_heads: int,
    seq_length: int,
    vocab_size: int,
    num_query_groups: int | None = None,
    kv_channels: int | None = None,
    gated_mlp: bool = False,
    causal: bool = True,
) -> FlopsPerToken:
    """Return the model FLOPs per token of a dense GPT, as used for TFLOP/s and MFU.

    Matrix products count 6 operations per weight and token; the docstring of this module has the formula and its
    sources. Other architectures: `model_flops_per_token`.

    Args:
        num_layers: Transformer layers.
        hidden_size: Width of the residual stream.
        ffn_hidden_size: Width inside the feed-forward layer (of each half, when gated).
        num_attention_heads: Query heads.
        seq_length: Tokens per sequence.
        vocab_size: Rows of the output layer, padding included.
        num_query_groups: Key-value heads; None: equal to the number of query heads.
        kv_channels: Width of a head; None: hidden_size // num_attention_heads.
        gated_mlp: True if the feed-forward layer is gated and has three matrices.
        causal: True if a token attends only to earlier positions.

    Raises:
        ValueError: a size is not positive.
    """
    groups = num_attention_heads if num_query_groups is None else num_query_groups
    _require_positive(
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_hidden_size=ffn_hidden_size,
        num_attention_heads=num_attention_heads,
        num_query_groups=groups,
        seq_length=seq_length,
        vocab_size=vocab_size,
    )
    head = hidden_size // num_attention_heads if kv_channels is None else kv_channels
    _require_positive(kv_channels=head)
    query, key = num_attention_heads * head, groups * head
    core = 12 * num_layers * seq_length * query
    return FlopsPerToken(
        attention_linear=6 * num_layers * hidden_size * (2 * query + 2 * key),
        attention_core=core / 2 if causal else core,
        mlp=6 * num_layers * hidden_size * ffn_hidden_size * (3 if gated_mlp else 2),
        logits=6 * hidden_size * vocab_size,
        causal=causal,
    )


def _require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(
                f"gpt_flops_per_token: {name} must be positive ({name}={size}). FLOPs are proportional to it. Set it "
                "to 1 or more."
            )
