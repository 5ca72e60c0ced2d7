"""Number of parameters of the low-rank adapters of a model, in total and per rank."""

from __future__ import annotations

from collections.abc import Iterable

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
    """Count the parameters of the adapters of one virtual stage. A T5 has one stage, with encoder and decoder.

    Args:
        chunk: Contents of the virtual stage.
        shape: Sizes of the model.
        adapters: Layers that have adapters, and their rank.
    """
    counts = []
    for number in chunk.layers:
        counts.append(_layer(shape, adapters, shape.layers[number], f"decoder.layers.{number}"))
        if shape.encoder_layers:
            counts.append(_linear(shape, adapters, f"decoder.layers.{number}", cross_products(shape)))
    for number in range(shape.encoder_layers):
        counts.append(_layer(shape, adapters, ATTENTION + MLP, f"encoder.layers.{number}"))
    # depths that repeat one layer share its adapters
    for depth in range(min(chunk.mtp, 1) if shape.mtp_repeated else chunk.mtp):
        name = f"mtp.layers.{depth}"
        counts.append(_layer(shape, adapters, shape.ahead[0], f"{name}.mtp_model_layer"))
        counts.append(
            _adapters(shape, adapters, f"{name}.{AHEAD}", Product("mtp", 2 * shape.hidden, shape.hidden))
        )
    if chunk.output and not shape.tied:
        counts.append(_adapters(shape, adapters, OUTPUT, Product("logits", shape.hidden, shape.vocab)))
    return sum(counts, ParameterCount())


def image_adapter_count(shape: ModelShape, adapters: Adapters) -> ParameterCount:
    """Count the parameters of the adapters of a vision encoder and its projection; none without an encoder."""
    if shape.vision is None:
        return ParameterCount()
    encoder = shape.image_encoder
    layers = [
        _layer(encoder, adapters, ATTENTION + MLP, f"vision.encoder.layers.{number}")
        for number in range(encoder.num_layers)
    ]
    return sum(layers, _linear(encoder, adapters, "vision", projection_products(shape)))


def _layer(shape: ModelShape, adapters: Adapters, letters: str, prefix: str) -> ParameterCount:
    """Count the adapters of a layer: `letters` are its parts (`mb_plan.shape.hybrid_pattern`), `prefix` its name."""
    products = [product for letter in letters for product in layer_products(shape, letter)]
    return _linear(shape, adapters, prefix, products)


def _linear(
    shape: ModelShape, adapters: Adapters, prefix: str, products: Iterable[Product]
) -> ParameterCount:
    counts = (_adapters(shape, adapters, f"{prefix}.{product.module}", product) for product in products)
    return sum(counts, ParameterCount())


def _adapters(shape: ModelShape, adapters: Adapters, name: str, product: Product) -> ParameterCount:
    """Count the adapters of one linear layer.

    A is sharded like the inputs of the layer over the tensor-parallel ranks, B and magnitudes like its outputs, unless
    every rank has the complete layer.
    """
    widths = adapters.widths(name, product)
    if not widths:
        return ParameterCount()
    rank = adapters.rank_of(product, shape)
    inputs = len(widths) * rank * round(product.inputs)  # of all A
    outputs = rank * round(sum(widths))  # of all B
    magnitudes = round(product.outputs) if adapters.magnitude else 0
    ranks = 1 if product.copied else shape.etp if product.grouped else shape.tp

    def count(of_inputs: int, of_outputs: int) -> ParameterCount:
        split = of_inputs // ranks + of_outputs if product.row else of_inputs + of_outputs // ranks
        return ParameterCount(of_inputs + of_outputs, split)

    if not product.grouped:
        return count(inputs, outputs + magnitudes)
    pair, magnitude = count(inputs, outputs), count(0, magnitudes)
    experts = experts_of(shape).number
    pairs, local_pairs = (1, 1) if adapters.shared else (experts, experts // shape.ep)
    return ParameterCount(
        pair.all_ranks * pairs + magnitude.all_ranks * experts,
        0,
        pair.dense * local_pairs + magnitude.dense * (experts // shape.ep),
    )
