"""Matrix products of a layer for one token, from which FLOPs and the time of a step are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
    module: str = ""
    """Name of the linear layer below its transformer layer; empty: it cannot have adapters."""
    row: bool = False
    """Inputs, not outputs, are sharded over tensor-parallel ranks."""
    branch: str = ""
    """Products of one branch feed each other; those without one receive the results of all before them."""
    fused: Mapping[str, float] = field(default_factory=dict)
    """Layers that are fused in this one, by the name of each outside of Megatron, to their outputs."""
    bias: bool = False
    """Each output has a bias."""
    copied: bool = False
    """Every tensor-parallel rank holds the complete weight."""


def layer_products(shape: ModelShape, letter: str, *, tp: int = 1) -> tuple[Product, ...]:
    """Return the products of a layer, or of one of the two halves of a layer of a GPT.

    Args:
        shape: Sizes of the model.
        letter: Kind of the layer (`mb_plan.shape.hybrid_pattern`).
        tp: Number of tensor-parallel ranks.
    """
    return _PRODUCTS[letter](shape, tp)


def cross_products(shape: ModelShape) -> tuple[Product, Product, Product]:
    """Return the products of a T5's cross-attention: queries; keys and values, of tokens of the encoder; output."""
    query, key = shape.heads * shape.head, shape.groups * shape.head
    part, inputs = "attention_linear", shape.hidden
    return (
        Product(part, inputs, query, module="cross_attention.linear_q", bias=shape.bias),
        Product(part, inputs, 2 * key, module="cross_attention.linear_kv", bias=shape.bias),
        Product(part, query, inputs, module="cross_attention.linear_proj", row=True, bias=shape.bias),
    )


def projection_products(shape: ModelShape) -> tuple[Product, ...]:
    """Return the products of the projection of a vision encoder; none without one."""
    vision = shape.vision
    if vision is None:
        return ()
    return (
        Product(
            "encoder",
            vision.hidden,
            vision.projection,
            module="projection.linear_fc1",
            fused={"linear_fc1_up": vision.projection},
            bias=True,
        ),
        Product(
            "encoder", vision.projection, shape.hidden, module="projection.linear_fc2", row=True, bias=True
        ),
    )


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
    """Products of self-attention: the fused projection to queries, keys and values, and that of the output."""
    query = shape.heads * shape.head / tp
    key_value = 2 * shape.groups * shape.head / min(tp, shape.groups)
    gate = query if shape.output_gate else 0.0
    return (
        Product(
            "attention_linear",
            shape.hidden,
            query + gate + key_value,
            module="self_attention.linear_qkv",
            fused={"linear_q": query + gate, "linear_k": key_value / 2, "linear_v": key_value / 2},
            bias=shape.qkv_bias,
        ),
        _attention_output(shape, query),
    )


def _attention_output(shape: ModelShape, inputs: float) -> Product:
    module = "self_attention.linear_proj"
    return Product("attention_linear", inputs, shape.hidden, module=module, row=True, bias=shape.bias)


def _latent(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    """Products of DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1, in training, where keys and values are expanded."""
    latent, hidden = latent_of(shape), shape.hidden
    heads, query = shape.heads / tp, latent.qk_head + latent.qk_position
    key_value = heads * (latent.qk_head + latent.v_head)
    copied = latent.down_copied
    products = [
        _projection("kv_down", hidden, latent.kv_rank + latent.qk_position, copied=copied),
        _projection("kv_up", latent.kv_rank, key_value),
    ]
    if latent.q_rank:
        products.append(_projection("q_down", hidden, latent.q_rank, copied=copied))
        products.append(_projection("q_up", latent.q_rank, heads * query))
    else:
        products.append(_projection("q", hidden, heads * query))
    return (*products, _attention_output(shape, heads * latent.v_head))


def _projection(name: str, inputs: float, outputs: float, *, copied: bool = False) -> Product:
    """Return a projection of latent attention to queries, or to keys and values."""
    module, branch = f"self_attention.linear_{name}_proj", name.partition("_")[0]
    return Product("attention_linear", inputs, outputs, module=module, branch=branch, copied=copied)


def _mlp(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    return _feed_forward("mlp", shape, shape.ffn / tp, module="mlp")


def _feed_forward(
    part: str,
    shape: ModelShape,
    width: float,
    *,
    module: str,
    hidden: float | None = None,
    grouped: bool = False,
    branch: str = "",
) -> tuple[Product, ...]:
    """Products of an MLP of `width` channels, the gate fused with the input; `hidden`: its outer width, if another."""
    outer = shape.hidden if hidden is None else hidden
    names = ("linear_fc1_gate", "linear_fc1_up") if shape.gated else ("linear_fc1_up",)
    fused = dict.fromkeys(names, width)
    return (
        Product(
            part,
            outer,
            len(names) * width,
            grouped,
            module=f"{module}.linear_fc1",
            branch=branch,
            fused=fused,
            bias=shape.bias,
        ),
        Product(
            part,
            width,
            outer,
            grouped,
            module=f"{module}.linear_fc2",
            row=True,
            branch=branch,
            bias=shape.bias,
        ),
    )


def _experts(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    """Products of a layer of experts: router, routed experts with their latent projections, and shared experts."""
    experts, hidden = experts_of(shape), shape.hidden
    routed = _feed_forward(
        "experts",
        shape,
        experts.width,
        module="mlp.experts.local_experts.0",
        hidden=experts.latent,
        grouped=True,
        branch="routed",
    )
    bias = shape.bias
    products = [
        Product("router", hidden, experts.number, branch="router", bias=bias, copied=True),
        *routed,
    ]
    if experts.latent:
        # every rank has both projections, and applies them to its part of the tokens
        width = experts.latent / tp
        rest: dict[str, Any] = {"branch": "routed", "bias": bias, "copied": True}
        into = Product("experts", hidden, width, module="mlp.fc1_latent_proj", **rest)
        back = Product("experts", width, hidden, module="mlp.fc2_latent_proj", **rest)
        products = [products[0], into, *products[1:], back]
    if experts.shared_width:
        width, name = experts.shared_width / tp, "mlp.shared_experts"
        products.extend(_feed_forward("shared_experts", shape, width, module=name, branch="shared"))
    if experts.shared_width and experts.shared_gate:
        products.append(Product("shared_experts", hidden, 1, branch="gate", copied=True))
    return tuple(products)


def _mamba(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    """Products of a Mamba 2 layer, without convolution and scan."""
    pattern = shape.hybrid
    inner, states = pattern.mamba_heads * pattern.mamba_head, 2 * pattern.mamba_groups * pattern.state
    return (
        Product(
            "mamba", shape.hidden, (2 * inner + states + pattern.mamba_heads) / tp, module="mixer.in_proj"
        ),
        Product("mamba", inner / tp, shape.hidden, module="mixer.out_proj", row=True),
    )


def _gated_delta(shape: ModelShape, tp: int) -> tuple[Product, ...]:
    """Products of a gated-delta layer, without convolution and recurrence."""
    pattern = shape.hybrid
    values = pattern.value_heads * pattern.value_head
    mixed = 2 * pattern.key_channels + 2 * values + 2 * pattern.value_heads
    return (
        Product("linear_attention", shape.hidden, mixed / tp, module="mixer.in_proj"),
        Product("linear_attention", values / tp, shape.hidden, module="mixer.out_proj", row=True),
    )


_PRODUCTS: Mapping[str, Callable[[ModelShape, int], tuple[Product, ...]]] = {
    ATTENTION: _attention,
    LATENT: _latent,
    MLP: _mlp,
    EXPERTS: _experts,
    MAMBA: _mamba,
    DELTA: _gated_delta,
}
