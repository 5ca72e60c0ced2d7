"""Matrix products of a layer for one token, from which FLOPs and the time of a step are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mb_plan.errors import PlanError
from mb_plan.shape.hybrid_pattern import ATTENTION, DELTA, EXPERTS, LATENT, MAMBA, MLP
from mb_plan.shape.model_shape import ExpertShape, LatentAttention, ModelShape


@dataclass(frozen=True, slots=True)
class Product:
    """Product of a token's row with a weight of `inputs` times `outputs` on one tensor-parallel rank."""

    part: str
    """Part of the model."""
    inputs: float
    outputs: float
    grouped: bool = False
    """The weight is that of a routed expert, and a token has one for each expert that it is sent to."""


def layer_products(shape: ModelShape, letter: str, *, tp: int = 1) -> tuple[Product, ...]:
    """Return the products of a layer, or of one of the two halves of a layer of a GPT.

    Args:
        shape: Sizes of the model.
        letter: Kind of the layer (`mb_plan.shape.hybrid_pattern`).
        tp: Number of tensor-parallel ranks.
    """
    return _PRODUCTS[letter](shape, tp)


def attended_width(shape: ModelShape, letter: str, *, tp: int = 1) -> float:
    """Return the products of attention for each position that a token attends to: scores, and their sum of values."""
    if letter != LATENT:
        return 2 * shape.heads * shape.head / tp
    latent = latent_of(shape)
    return shape.heads * (latent.qk_head + latent.qk_position + latent.v_head) / tp


def latent_of(shape: ModelShape) -> LatentAttention:
    """Return the sizes of latent attention.

    Raises:
        PlanError: The model has none.
    """
    if shape.latent is None:
        raise PlanError("model.multi_latent_attention: is not set, but a layer has latent attention. Set it.")
    return shape.latent


def experts_of(shape: ModelShape) -> ExpertShape:
    """Return the sizes of the experts.

    Raises:
        PlanError: The model has none.
    """
    if shape.experts is None:
        raise PlanError("model.num_moe_experts: is not set, but a layer has experts. Set it.")
    return shape.experts


def _attention(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    query = shape.heads * shape.head / tp
    key_value = 2 * shape.groups * shape.head / min(tp, shape.groups)
    gate = query if shape.output_gate else 0.0
    return (
        Product("attention_linear", shape.hidden, query + gate + key_value),
        Product("attention_linear", query, shape.hidden),
    )


def _latent(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    """Products of DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1, in training, where keys and values are expanded."""
    latent, hidden = latent_of(shape), shape.hidden
    heads, query = shape.heads / tp, latent.qk_head + latent.qk_position
    sizes = [
        (hidden, latent.kv_rank + latent.qk_position),
        (latent.kv_rank, heads * (latent.qk_head + latent.v_head)),
        (heads * latent.v_head, hidden),
        (latent.q_rank or hidden, heads * query),
    ]
    if latent.q_rank:
        sizes.append((hidden, latent.q_rank))
    return tuple(Product("attention_linear", inputs, outputs) for inputs, outputs in sizes)


def _mlp(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    return _feed_forward("mlp", shape, shape.ffn / tp)


def _feed_forward(part: str, shape: ModelShape, width: float) -> tuple[Product, ...]:
    halves = 2 if shape.gated else 1
    return Product(part, shape.hidden, halves * width), Product(part, width, shape.hidden)


def _experts(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    experts, hidden = experts_of(shape), shape.hidden
    halves, width = 2 if shape.gated else 1, experts.latent or hidden
    products = [
        Product("router", hidden, experts.number),
        Product("experts", width, halves * experts.width, grouped=True),
        Product("experts", experts.width, width, grouped=True),
    ]
    if experts.latent:
        products.append(Product("experts", hidden, experts.latent / tp))
        products.append(Product("experts", experts.latent / tp, hidden))
    if experts.shared_width:
        products.extend(_feed_forward("shared_experts", shape, experts.shared_width / tp))
    if experts.shared_width and experts.shared_gate:
        products.append(Product("shared_experts", hidden, 1))
    return tuple(products)


def _mamba(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    """Products of a Mamba 2 layer, without convolution and scan."""
    pattern = shape.hybrid
    inner, states = pattern.mamba_heads * pattern.mamba_head, 2 * pattern.mamba_groups * pattern.state
    return (
        Product("mamba", shape.hidden, (2 * inner + states + pattern.mamba_heads) / tp),
        Product("mamba", inner / tp, shape.hidden),
    )


def _gated_delta(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    """Products of a gated-delta layer, without convolution and recurrence."""
    pattern = shape.hybrid
    values = pattern.value_heads * pattern.value_head
    mixed = 2 * pattern.key_channels + 2 * values + 2 * pattern.value_heads
    return (
        Product("linear_attention", shape.hidden, mixed / tp),
        Product("linear_attention", values / tp, shape.hidden),
    )


_PRODUCTS: Mapping[str, Callable[[ModelShape, int], tuple[Product, ...]]] = {
    ATTENTION: _attention,
    LATENT: _latent,
    MLP: _mlp,
    EXPERTS: _experts,
    MAMBA: _mamba,
    DELTA: _gated_delta,
}
