"""Number of parameters of each part of a model, in total and per rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mb_plan.errors import PlanError
from mb_plan.memory.model_chunks import ModelChunk
from mb_plan.shape.hybrid_pattern import MAMBA_FILTER, HybridPattern, layers_ahead, layers_of
from mb_plan.shape.model_shape import ExpertShape, LatentAttention, ModelShape


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


def add_parts(*every: Parts) -> dict[str, ParameterCount]:
    """Add the parts of the same name."""
    total: dict[str, ParameterCount] = {}
    for parts in every:
        for name, count in parts.items():
            total[name] = total.get(name, ParameterCount()) + count
    return total


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
    if shape.pattern is not None:
        parts = [letter_parts(shape, shape.pattern, letter) for letter in chunk.letters]
    else:
        kinds = [shape.has_experts(layer) for layer in chunk.layers]
        parts = [scaled(layer_parts(shape, experts=kind), kinds.count(kind)) for kind in sorted(set(kinds))]
    norm = ParameterCount(shape.norm_tensors * shape.hidden, shape.norm_tensors * shape.hidden)
    if shape.encoder_layers:
        parts.append(encoder_parts(shape, decoder_layers=len(chunk.layers)))
    if chunk.embedding or chunk.mtp:
        parts.append(embedding_parts(shape))
    if chunk.mtp:
        parts.append({"mtp": mtp_layer(shape) * (1 if shape.mtp_repeated else chunk.mtp)})
    if chunk.final_norm:
        parts.append({"norms": norm})
    if chunk.output and not (shape.tied and (chunk.embedding or chunk.mtp)):
        parts.append({"output": _rows(shape)})
    return add_parts(*parts)


def scaled(parts: Parts, times: int) -> dict[str, ParameterCount]:
    """Multiply every part."""
    return {name: count * times for name, count in parts.items()}


def embedding_parts(shape: ModelShape) -> dict[str, ParameterCount]:
    """Count the word embedding and the learned positions, which are replicated on every rank."""
    positions = shape.positions * shape.hidden
    learned = {"positions": ParameterCount(positions, positions)} if positions else {}
    return {"embedding": _rows(shape), **learned}


def _rows(shape: ModelShape) -> ParameterCount:
    return _split(shape.vocab * shape.hidden, rows=shape.vocab, over=shape.tp, what="vocab_size")


def layer_parts(shape: ModelShape, *, experts: bool) -> dict[str, ParameterCount]:
    """Count one decoder layer, dense or with experts."""
    norms = shape.norms_of_layer * shape.norm_tensors * shape.hidden
    attention = (
        _attention(shape) if shape.latent is None else _latent_attention(shape, shape.latent)
    ) + _sink(shape)
    mlp = (
        {"mlp": _mlp(shape, shape.ffn)}
        if not experts or shape.experts is None
        else _experts(shape, shape.experts)
    )
    return {"norms": ParameterCount(norms, norms), "attention": attention, **mlp}


def letter_parts(shape: ModelShape, pattern: HybridPattern, letter: str) -> dict[str, ParameterCount]:
    """Count one layer of a hybrid model, with its norm."""
    norms = shape.norm_tensors * shape.hidden
    layer: Parts
    if letter == "M":
        layer = {"mamba": _mamba(shape, pattern)}
    elif letter == "G":
        layer = {"gated_delta": _gated_delta(shape, pattern)}
    elif letter == "*":
        layer = {"attention": _attention(shape)}
    elif letter == "E" and shape.experts is not None:
        layer = _experts(shape, shape.experts)
    else:
        layer = {"mlp": _mlp(shape, shape.ffn)}
    return {"norms": ParameterCount(norms, norms), **layer}


def _mamba(shape: ModelShape, pattern: HybridPattern) -> ParameterCount:
    """Count a Mamba 2 layer, which is sharded by heads and groups."""
    inner = pattern.mamba_heads * pattern.mamba_head
    mixed = inner + 2 * pattern.mamba_groups * pattern.state
    if pattern.mamba_groups % shape.tp or pattern.mamba_heads % shape.tp:
        raise PlanError(
            f"model.mamba_num_groups: {pattern.mamba_heads} heads in {pattern.mamba_groups} groups cannot be split "
            f"into {shape.tp} equal parts. Change them or the parallel size."
        )
    own = mixed * (MAMBA_FILTER + 1) + 3 * pattern.mamba_heads + inner
    return (
        column(shape, shape.hidden, inner + mixed + pattern.mamba_heads, bias=False)
        + ParameterCount(own, own // shape.tp)
        + row(shape, inner, shape.hidden, bias=False)
    )


def _gated_delta(shape: ModelShape, pattern: HybridPattern) -> ParameterCount:
    """Count a gated-delta layer, whose inner norm is replicated on every rank."""
    values = pattern.value_heads * pattern.value_head
    mixed = 2 * pattern.key_channels + values
    inner_norm = shape.norm_tensors * pattern.value_head
    own = mixed * pattern.delta_filter + 2 * pattern.value_heads
    return (
        column(shape, shape.hidden, mixed + values + 2 * pattern.value_heads, bias=False)
        + ParameterCount(own, own // shape.tp)
        + ParameterCount(inner_norm, inner_norm)
        + row(shape, values, shape.hidden, bias=False)
    )


def encoder_parts(shape: ModelShape, *, decoder_layers: int) -> dict[str, ParameterCount]:
    """Count the parameters that a T5 has in addition to the layers of a decoder-only model.

    These are the encoder with its final norm, a norm and cross-attention (without grouped queries) in each decoder
    layer, and the bias of a tied output layer.
    """
    norms = shape.norm_tensors * shape.hidden
    inner = shape.heads * shape.head
    across = (
        column(shape, shape.hidden, inner, bias=shape.bias)
        + column(shape, shape.hidden, 2 * inner, bias=shape.bias)
        + row(shape, inner, shape.hidden, bias=shape.bias)
    )
    rows = _split(shape.vocab, rows=shape.vocab, over=shape.tp, what="vocab_size")
    return add_parts(
        scaled(layer_parts(shape, experts=False), shape.encoder_layers),
        scaled({"norms": ParameterCount(norms, norms), "cross_attention": across}, decoder_layers),
        {"norms": ParameterCount(norms, norms)},
        {"output": rows} if shape.tied else {},
    )


def mtp_layer(shape: ModelShape) -> ParameterCount:
    """Count a multi-token prediction layer: three norms, the projection of two inputs, and a copy of the last layer.

    In a hybrid model the copy is replaced by the layers after / in the pattern.
    """
    norms = 3 * shape.norm_tensors * shape.hidden
    if shape.pattern is None:
        layer = total(layer_parts(shape, experts=shape.has_experts(shape.num_layers - 1)))
    else:
        ahead = layers_ahead(shape.pattern.pattern)[0]
        layer = total(add_parts(*(letter_parts(shape, shape.pattern, letter) for letter in ahead)))
    return ParameterCount(norms, norms) + column(shape, 2 * shape.hidden, shape.hidden, bias=False) + layer


def _split(number: int, *, rows: int, over: int, what: str) -> ParameterCount:
    if rows % over:
        raise PlanError(
            f"model.{what}: {rows} cannot be split into {over} equal parts. Change it or the parallel size."
        )
    return ParameterCount(number, number // over)


def column(
    shape: ModelShape, inputs: int, outputs: int, *, bias: bool, over: int | None = None
) -> ParameterCount:
    """Count a column-parallel linear layer, whose outputs and bias are sharded over tensor-parallel ranks."""
    return _split(
        (inputs + bias) * outputs, rows=outputs, over=over or shape.tp, what="tensor_model_parallel_size"
    )


def row(
    shape: ModelShape, inputs: int, outputs: int, *, bias: bool, over: int | None = None
) -> ParameterCount:
    """Count a row-parallel linear layer, whose inputs are sharded over tensor-parallel ranks and whose bias is not."""
    weight = _split(inputs * outputs, rows=inputs, over=over or shape.tp, what="tensor_model_parallel_size")
    return weight + ParameterCount(outputs * bias, outputs * bias)


def _attention(shape: ModelShape) -> ParameterCount:
    query, key = shape.heads * shape.head, shape.groups * shape.head
    outputs = query * (2 if shape.output_gate else 1) + 2 * key
    return (
        column(shape, shape.hidden, outputs, bias=shape.qkv_bias)
        + row(shape, query, shape.hidden, bias=shape.bias)
        + _query_key_norms(shape)
    )


def _query_key_norms(shape: ModelShape) -> ParameterCount:
    if not shape.qk_norm:
        return ParameterCount()
    heads = shape.heads + shape.groups if shape.qk_norm_over_all_heads else 2
    norms = shape.norm_tensors * heads * shape.head
    return ParameterCount(norms, norms)


def _sink(shape: ModelShape) -> ParameterCount:
    if not shape.softmax_sink:
        return ParameterCount()
    return _split(shape.heads, rows=shape.heads, over=shape.tp, what="num_attention_heads")


def _latent_attention(shape: ModelShape, latent: LatentAttention) -> ParameterCount:
    head = latent.qk_head + latent.qk_position
    parts = [
        _down(shape, latent.kv_rank + latent.qk_position, copied=latent.down_copied),
        column(shape, latent.kv_rank, shape.heads * (latent.qk_head + latent.v_head), bias=False),
        row(shape, shape.heads * latent.v_head, shape.hidden, bias=shape.bias),
    ]
    if latent.q_rank is None:
        parts.append(column(shape, shape.hidden, shape.heads * head, bias=False))
    else:
        parts.append(_down(shape, latent.q_rank, copied=latent.down_copied))
        parts.append(column(shape, latent.q_rank, shape.heads * head, bias=False))
    if shape.qk_norm:
        norms = shape.norm_tensors * (latent.kv_rank + (latent.q_rank or 0))
        parts.append(ParameterCount(norms, norms))
    return sum(parts, ParameterCount())


def _down(shape: ModelShape, outputs: int, *, copied: bool) -> ParameterCount:
    if copied:
        return ParameterCount(shape.hidden * outputs, shape.hidden * outputs)
    return column(shape, shape.hidden, outputs, bias=False)


def _mlp(
    shape: ModelShape, width: int, *, over: int | None = None, hidden: int | None = None
) -> ParameterCount:
    inner, outer = 2 * width if shape.gated else width, hidden or shape.hidden
    return column(shape, outer, inner, bias=shape.bias, over=over) + row(
        shape, width, outer, bias=shape.bias, over=over
    )


def _experts(shape: ModelShape, experts: ExpertShape) -> dict[str, ParameterCount]:
    if experts.number % shape.ep:
        raise PlanError(
            f"model.num_moe_experts: {experts.number} experts cannot be divided equally over ep={shape.ep} ranks. "
            "Change one of the two."
        )
    one = _mlp(shape, experts.width, over=shape.etp, hidden=experts.latent)
    projections = _latent_projections(shape, experts)
    router = (shape.hidden + shape.bias) * experts.number
    parts = {
        "router": ParameterCount(router, router),
        "experts": ParameterCount(one.all_ranks * experts.number, 0, one.dense * (experts.number // shape.ep))
        + ParameterCount(projections, projections),
    }
    if experts.shared_width:
        gate = shape.hidden if experts.shared_gate else 0
        parts["shared_experts"] = _mlp(shape, experts.shared_width) + ParameterCount(gate, gate)
    return parts


def _latent_projections(shape: ModelShape, experts: ExpertShape) -> int:
    """Return the parameters of the projections to the width of the experts and back, which every rank has."""
    if experts.latent is None:
        return 0
    return 2 * shape.hidden * experts.latent + shape.bias * (shape.hidden + experts.latent)


def active(parts: Parts, shape: ModelShape) -> int:
    """Return the parameters that one token uses: all except the routed experts that it is not sent to.

    `parts` are those of the complete model. Multi-token prediction layers count with the experts that a token uses.
    """
    everything = total(parts).all_ranks
    if shape.experts is None:
        return everything
    inactive = shape.experts.number - shape.experts.top_k
    one = _mlp(shape, shape.experts.width, over=1, hidden=shape.experts.latent).all_ranks
    layers = sum(shape.experts.layers)
    if shape.pattern is not None:
        ahead = layers_ahead(shape.pattern.pattern)
        built = ahead[:1] if shape.mtp_repeated else ahead
        return everything - inactive * one * "".join([layers_of(shape.pattern.pattern), *built]).count("E")
    if shape.has_experts(shape.num_layers - 1):
        layers += min(shape.mtp_layers, 1) if shape.mtp_repeated else shape.mtp_layers
    return everything - inactive * one * layers
