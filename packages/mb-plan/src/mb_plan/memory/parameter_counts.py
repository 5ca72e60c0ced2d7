"""Number of parameters of each part of a model, in total and per rank.

The weights of linear layers are those of the products in `mb_plan.shape.products`; norms, embeddings, convolutions and
state-space layers add their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mb_plan.errors import PlanError
from mb_plan.memory.model_chunks import ModelChunk
from mb_plan.shape.hybrid_pattern import ATTENTION, DELTA, EXPERTS, LATENT, MAMBA, MAMBA_FILTER, MLP
from mb_plan.shape.model_shape import ModelShape
from mb_plan.shape.products import Product, cross_products, experts_of, latent_of, layer_products


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Numbers of parameters, which can be added and multiplied."""

    all_ranks: int = 0
    """Parameters over all tensor- and expert-parallel ranks of a stage, each counted once."""
    dense: int = 0
    """Parameters per rank without routed experts, which the data-parallel ranks replicate."""
    expert: int = 0
    """Parameters per rank of routed experts, which the expert-data-parallel ranks replicate."""

    def __add__(self, other: ParameterCount) -> ParameterCount:
        return ParameterCount(
            self.all_ranks + other.all_ranks, self.dense + other.dense, self.expert + other.expert
        )

    def __mul__(self, times: int) -> ParameterCount:
        return ParameterCount(self.all_ranks * times, self.dense * times, self.expert * times)

    @property
    def rank(self) -> int:
        """Parameters per rank."""
        return self.dense + self.expert


Parts = Mapping[str, ParameterCount]
"""Part of a model, such as "attention", to its parameters."""

_PARTS = {"attention_linear": "attention", "linear_attention": "gated_delta"}
"""Part of a product to the part of the model, where they differ."""


def copied(number: int) -> ParameterCount:
    """Return the count of parameters that every tensor-parallel rank holds."""
    return ParameterCount(number, number)


def add_parts(*every: Parts) -> dict[str, ParameterCount]:
    """Add the parts of the same name."""
    total: dict[str, ParameterCount] = {}
    for parts in every:
        for name, count in parts.items():
            total[name] = total.get(name, ParameterCount()) + count
    return total


def scaled(parts: Parts, times: int) -> dict[str, ParameterCount]:
    """Multiply every part."""
    return {name: count * times for name, count in parts.items()}


def total(parts: Parts) -> ParameterCount:
    """Add all parts."""
    return sum(parts.values(), ParameterCount())


def chunk_parts(chunk: ModelChunk, shape: ModelShape) -> dict[str, ParameterCount]:
    """Count the parameters of one virtual stage, including copies of the embedding. A T5 has one stage.

    A stage with multi-token prediction and the last stage of a model with tied embeddings hold a copy of the
    embedding, unless they are the first.

    Raises:
        PlanError: If a size does not divide by its number of ranks.
    """
    layers = Counter(shape.layers[number] for number in chunk.layers)
    parts = [scaled(layer_parts(shape, letters), number) for letters, number in layers.items()]
    rows = _split(shape.vocab * shape.hidden, shape.vocab, over=shape.tp, field="vocab_size")
    if shape.encoder_layers:
        parts.append(_encoder_parts(shape, decoder_layers=len(chunk.layers)))
    if chunk.embedding or chunk.mtp:
        parts.append({"embedding": rows})
        if shape.positions:
            parts.append({"positions": copied(shape.positions * shape.hidden)})
    if chunk.mtp:
        parts.append({"mtp": _mtp_layer(shape) * (1 if shape.mtp_repeated else chunk.mtp)})
    if chunk.final_norm:
        parts.append(_norms(shape, 1))
    if chunk.output and not (shape.tied and (chunk.embedding or chunk.mtp)):
        parts.append({"output": rows})
    return add_parts(*parts)


def layer_parts(shape: ModelShape, letters: str) -> dict[str, ParameterCount]:
    """Count a layer with its norms: one letter of a hybrid model, or the two halves of a layer of a GPT."""
    norms = shape.norms_of_layer if shape.pattern is None else len(letters)
    return add_parts(_norms(shape, norms), *(_letter_parts(shape, letter) for letter in letters))


def _norms(shape: ModelShape, number: int) -> dict[str, ParameterCount]:
    return {"norms": copied(number * shape.norm_tensors * shape.hidden)}


def _letter_parts(shape: ModelShape, letter: str) -> dict[str, ParameterCount]:
    """Count the parameters of a layer of one letter, without its norm: products, and what its kind has in addition."""
    linear = [
        {_PARTS.get(product.part, product.part): linear_parameters(shape, product)}
        for product in layer_products(shape, letter)
    ]
    own: Parts = {}
    if letter in (ATTENTION, LATENT):
        own = {"attention": _attention_norms(shape, letter) + _sink(shape)}
    elif letter == MAMBA:
        own = {"mamba": _mamba(shape)}
    elif letter == DELTA:
        own = {"gated_delta": _gated_delta(shape)}
    return add_parts(*linear, own)


def linear_parameters(shape: ModelShape, product: Product) -> ParameterCount:
    """Count the linear layer of a product, given for one tensor-parallel rank; of routed experts all of them.

    A column-parallel layer shards its outputs and its bias over the tensor-parallel ranks, a row-parallel one its
    inputs, but not its bias.

    Raises:
        PlanError: If a size does not divide by its number of ranks.
    """
    inputs, outputs = round(product.inputs), round(product.outputs)
    number, bias = inputs * outputs, outputs if product.bias else 0
    if product.copied:
        return copied(number + bias)
    over, field = (shape.etp if product.grouped else shape.tp), "tensor_model_parallel_size"
    if product.row:
        count = _split(number, inputs, over=over, field=field) + copied(bias)
    else:
        count = _split(number + bias, outputs, over=over, field=field)
    if not product.grouped:
        return count
    experts = experts_of(shape).number
    if experts % shape.ep:
        raise PlanError(
            f"model.num_moe_experts: {experts} experts cannot be divided equally over ep={shape.ep} ranks. "
            "Change one of the two."
        )
    return ParameterCount(count.all_ranks * experts, 0, count.dense * (experts // shape.ep))


def _split(number: int, size: int, *, over: int, field: str) -> ParameterCount:
    """Count parameters that ranks share by a size of the model."""
    if size % over:
        raise PlanError(
            f"model.{field}: {size} cannot be split into {over} equal parts. Change it or the parallel size."
        )
    return ParameterCount(number, number // over)


def _attention_norms(shape: ModelShape, letter: str) -> ParameterCount:
    """Count the norms of queries and keys, or of compressed queries, keys and values."""
    if not shape.qk_norm:
        return ParameterCount()
    if letter == LATENT:
        latent = latent_of(shape)
        return copied(shape.norm_tensors * (latent.kv_rank + (latent.q_rank or 0)))
    heads = shape.heads + shape.groups if shape.qk_norm_over_all_heads else 2
    return copied(shape.norm_tensors * heads * shape.head)


def _sink(shape: ModelShape) -> ParameterCount:
    if not shape.softmax_sink:
        return ParameterCount()
    return _split(shape.heads, shape.heads, over=shape.tp, field="num_attention_heads")


def _mamba(shape: ModelShape) -> ParameterCount:
    """Count convolution, scan and norm of a Mamba 2 layer, which is sharded by heads and groups."""
    pattern = shape.hybrid
    inner = pattern.mamba_heads * pattern.mamba_head
    mixed = inner + 2 * pattern.mamba_groups * pattern.state
    if pattern.mamba_groups % shape.tp or pattern.mamba_heads % shape.tp:
        raise PlanError(
            f"model.mamba_num_groups: {pattern.mamba_heads} heads in {pattern.mamba_groups} groups cannot be split "
            f"into {shape.tp} equal parts. Change them or the parallel size."
        )
    own = mixed * (MAMBA_FILTER + 1) + 3 * pattern.mamba_heads + inner
    return ParameterCount(own, own // shape.tp)


def _gated_delta(shape: ModelShape) -> ParameterCount:
    """Count convolution, decay and norm of a gated-delta layer, whose norm is replicated on every rank."""
    pattern = shape.hybrid
    mixed = 2 * pattern.key_channels + pattern.value_heads * pattern.value_head
    own = mixed * pattern.delta_filter + 2 * pattern.value_heads
    return ParameterCount(own, own // shape.tp) + copied(shape.norm_tensors * pattern.value_head)


def _encoder_parts(shape: ModelShape, *, decoder_layers: int) -> dict[str, ParameterCount]:
    """Count the parameters that a T5 has in addition to the layers of a decoder-only model.

    These are the encoder with its final norm, a norm and cross-attention in each decoder layer, and the bias of a tied
    output layer.
    """
    crossed = [linear_parameters(shape, product) for product in cross_products(shape)]
    bias = _split(shape.vocab, shape.vocab, over=shape.tp, field="vocab_size")
    return add_parts(
        scaled(layer_parts(shape, ATTENTION + MLP), shape.encoder_layers),
        scaled({"cross_attention": sum(crossed, ParameterCount())}, decoder_layers),
        _norms(shape, decoder_layers + 1),
        {"output": bias} if shape.tied else {},
    )


def _mtp_layer(shape: ModelShape) -> ParameterCount:
    """Count a depth of multi-token prediction: three norms, the projection of two inputs, and its layers.

    These are a copy of the last layer of a GPT, or the layers after / in the pattern of a hybrid model.
    """
    layers = shape.ahead[:1] if shape.pattern is None else tuple(shape.ahead[0])
    joined = linear_parameters(shape, Product("mtp", 2 * shape.hidden, shape.hidden))
    own = [_norms(shape, 3), {"mtp": joined}, *(layer_parts(shape, letters) for letters in layers)]
    return total(add_parts(*own))


def active(parts: Parts, shape: ModelShape) -> int:
    """Return the parameters that one token uses: all except the routed experts that it is not sent to.

    `parts` are those of the complete model. Multi-token prediction layers count with the experts that a token uses.
    """
    everything = total(parts).all_ranks
    if shape.experts is None:
        return everything
    routed = [product for product in layer_products(shape, EXPERTS) if product.grouped]
    expert = sum(round((item.inputs + item.bias) * item.outputs) for item in routed)
    built = shape.ahead[:1] if shape.mtp_repeated else shape.ahead
    layers = "".join([*shape.layers, *built]).count(EXPERTS)
    return everything - (shape.experts.number - shape.experts.top_k) * expert * layers
