"""Number of parameters of the adapters of a model."""

from __future__ import annotations

from mb_plan.memory.model_chunks import ModelChunk
from mb_plan.memory.parameter_counts import ParameterCount
from mb_plan.shape.adapters import AHEAD, OUTPUT, Adapters
from mb_plan.shape.hybrid_pattern import ATTENTION, MLP
from mb_plan.shape.model_shape import ModelShape
from mb_plan.shape.products import (
    Product,
    cross_products,
    experts_of,
    layer_products,
    projection_products,
)


def adapter_count(chunk: ModelChunk, shape: ModelShape, adapters: Adapters) -> ParameterCount:
    """Count the adapters of one virtual stage. A T5 has one stage."""
    found = ParameterCount()
    letters = shape.layers
    for number in chunk.layers:
        found += _layer(shape, adapters, letters[number], f"decoder.layers.{number}")
        if shape.encoder_layers:
            found += _cross_attention(shape, adapters, f"decoder.layers.{number}")
    for number in range(shape.encoder_layers):
        found += _layer(shape, adapters, ATTENTION + MLP, f"encoder.layers.{number}")
    for depth in range(min(chunk.mtp, 1) if shape.mtp_repeated else chunk.mtp):
        name = f"mtp.layers.{depth}"
        found += _layer(shape, adapters, shape.ahead[0], f"{name}.mtp_model_layer")
        joined = Product("mtp", 2 * shape.hidden, shape.hidden)
        found += _linear(shape, adapters, f"{name}.{AHEAD}", joined)
    if chunk.output and not shape.tied:
        found += _linear(shape, adapters, OUTPUT, Product("logits", shape.hidden, shape.vocab))
    return found


def image_adapter_count(shape: ModelShape, adapters: Adapters) -> ParameterCount:
    """Count the adapters of a vision encoder and its projection; none without an encoder."""
    found = ParameterCount()
    if shape.vision is None:
        return found
    encoder = shape.image_encoder
    for number in range(encoder.num_layers):
        found += _layer(encoder, adapters, ATTENTION + MLP, f"vision.encoder.layers.{number}")
    for product in projection_products(shape):
        found += _linear(encoder, adapters, f"vision.{product.module}", product)
    return found


def _layer(shape: ModelShape, adapters: Adapters, letters: str, prefix: str) -> ParameterCount:
    found = ParameterCount()
    for letter in letters:
        for product in layer_products(shape, letter):
            found += _linear(shape, adapters, f"{prefix}.{product.module}", product)
    return found


def _cross_attention(shape: ModelShape, adapters: Adapters, prefix: str) -> ParameterCount:
    found = ParameterCount()
    for product in cross_products(shape):
        found += _linear(shape, adapters, f"{prefix}.{product.module}", product)
    return found


def _linear(shape: ModelShape, adapters: Adapters, name: str, product: Product) -> ParameterCount:
    """Count the adapters of one layer: A is sharded like the inputs of the layer, B and magnitudes like its outputs."""
    widths = adapters.widths(name, product)
    if not widths:
        return ParameterCount()
    into = len(widths) * adapters.rank * round(product.inputs)
    out = adapters.rank * round(sum(widths)) + (round(product.outputs) if adapters.magnitude else 0)
    over = shape.etp if product.grouped else shape.tp
    rank = into // over + out if product.row else into + out // over
    if not product.grouped:
        return ParameterCount(into + out, rank)
    experts = experts_of(shape).number
    return ParameterCount((into + out) * experts, 0, rank * (experts // shape.ep))
