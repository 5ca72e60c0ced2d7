"""Activation memory of a microbatch between its forward and its backward pass.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), sections 4 and 5.
The sum contains each tensor that autograd saves for a layer, without small ones (statistics of norms, rotary tables,
router scores). With s tokens, b sequences, hidden size h, a heads, t tensor-parallel ranks and 2-byte numbers, a dense
layer with dropout saves sbh(10 + 24/t + 5as/ht), and with sequence parallelism sbh/t (34 + 5as/h), as in the paper.
Gated MLPs, grouped and latent attention, experts and fused attention (which saves no scores, Dao et al. 2022) are
counted tensor by tensor. Norms are assumed to be fused kernels; torch's norms save up to twice their input in addition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mb_plan.memory.model_chunks import ModelChunk
from mb_plan.shape.fields import as_word, read_field
from mb_plan.shape.model_shape import ExpertShape, LatentAttention, ModelShape

SELECTIVE_DEFAULT = ("core_attn",)
"""Modules that Megatron recomputes for `selective` without a list."""

_FUSED = ("auto", "flash", "fused")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSettings:
    """Settings other than sizes that determine the activation memory."""

    number_bytes: int
    """Bytes of an element of an activation."""
    sequence_parallel: bool
    hidden_dropout: bool
    attention_dropout: bool
    scores_kept: bool
    """Attention is not fused: the scores of all pairs of tokens are saved."""
    fused_activation: bool
    """The activation of a gated MLP is one kernel, which saves neither of its halves separately."""
    recompute: str | None
    """None, "selective" or "full"."""
    method: str | None
    """Method of "full": "uniform" or "block"."""
    recompute_layers: int
    modules: frozenset[str]
    """Modules that "selective" recomputes."""
    spread_inputs: bool
    """Inputs of recomputed layers are sharded over the tensor-parallel ranks."""


def read_activation_settings(model: object, *, number_bytes: int) -> ActivationSettings:
    """Read the settings from a model section."""
    recompute = read_field(model, "recompute_granularity")
    fused = read_field(model, "transformer_impl", "transformer_engine") != "local"
    capped = read_field(model, "attn_logit_softcapping") is not None
    backend = read_field(model, "attention_backend", "auto")
    modules = read_field(model, "recompute_modules") or SELECTIVE_DEFAULT
    return ActivationSettings(
        number_bytes=number_bytes,
        sequence_parallel=bool(read_field(model, "sequence_parallel", False)),
        hidden_dropout=bool(read_field(model, "hidden_dropout", 0.1)),
        attention_dropout=bool(read_field(model, "attention_dropout", 0.1)),
        scores_kept=capped or not (fused and as_word(backend) in _FUSED),
        fused_activation=bool(
            read_field(model, "bias_activation_fusion", False)
            or read_field(model, "use_te_activation_func", False)
        ),
        recompute=recompute,
        method=read_field(model, "recompute_method"),
        recompute_layers=read_field(model, "recompute_num_layers") or 1,
        modules=frozenset(modules) if recompute == "selective" else frozenset(),
        spread_inputs=bool(read_field(model, "distribute_saved_activations", False)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Tokens of a microbatch on one rank."""

    tokens: int
    """Sequences times the tokens of a sequence on a context-parallel rank."""
    seq_length: int
    """Tokens that one token can attend to."""


def layer_bytes(
    shape: ModelShape, settings: ActivationSettings, batch: Microbatch, *, experts: bool
) -> Mapping[str, float]:
    """Return the bytes that one layer saves for a microbatch, by module, without recomputation.

    The modules are those of `recompute_modules`, and "rest" for tensors that only "full" recomputes.
    """
    wide, e = batch.tokens * settings.number_bytes, settings.number_bytes
    narrow = wide / shape.tp if settings.sequence_parallel else wide
    masks = 2 * shape.hidden * narrow / e if settings.hidden_dropout else 0.0
    parts = {
        "rest": shape.norms_of_layer * shape.hidden * narrow + masks,
        "layernorm": 2 * shape.hidden * narrow,
        **_attention(shape, batch.tokens, e),
        "core_attn": _scores(shape, settings, batch),
    }
    if experts and shape.experts is not None:
        return {**parts, **_experts(shape, shape.experts, settings, wide)}
    return {**parts, "mlp": _widths(shape, settings) * shape.ffn * wide / shape.tp}


def _widths(shape: ModelShape, settings: ActivationSettings) -> int:
    """Return the number of tensors of inner width that an MLP saves: before, within and after the activation."""
    if not shape.gated:
        return 2
    return 3 if settings.fused_activation else 5


def _attention(shape: ModelShape, tokens: int, number_bytes: int) -> dict[str, float]:
    """Return the bytes of query, key, value and result, of inputs of their norms, and of the output gate.

    Megatron's gate saves its sigmoid in float32, and its product with the result.
    """
    wide = tokens * number_bytes
    if shape.latent is not None:
        return _latent(shape, shape.latent, wide)
    query, key = shape.heads * shape.head, shape.groups * shape.head
    normed = query + key if shape.qk_norm else 0
    gate = query * tokens * (4 + number_bytes) if shape.output_gate else 0
    return {"attention": ((2 * query + 2 * key + normed) * wide + gate) / shape.tp}


def _latent(shape: ModelShape, latent: LatentAttention, wide: float) -> dict[str, float]:
    head = latent.qk_head + latent.qk_position
    compressed = latent.kv_rank + latent.qk_position + (latent.q_rank or 0)
    normed = latent.kv_rank + (latent.q_rank or 0) if shape.qk_norm else 0
    return {
        "attention": (compressed + normed) * wide + shape.heads * latent.v_head * wide / shape.tp,
        "mla_up_proj": shape.heads * (2 * head + latent.v_head) * wide / shape.tp,
    }


def _scores(shape: ModelShape, settings: ActivationSettings, batch: Microbatch) -> float:
    """Return the bytes of the scores (softmax, dropout mask and result), or of the float32 statistics if fused."""
    heads = shape.heads / shape.tp
    if not settings.scores_kept:
        return 4 * heads * batch.tokens
    e = settings.number_bytes
    return heads * batch.tokens * batch.seq_length * (2 * e + 1 if settings.attention_dropout else e)


def _experts(
    shape: ModelShape, experts: ExpertShape, settings: ActivationSettings, wide: float
) -> dict[str, float]:
    """Return the bytes of experts under equal load, including the weighted outputs unless the kernel is fused."""
    widths = _widths(shape, settings) - 1 + (0 if settings.fused_activation else 1)
    routed = wide * experts.top_k * (experts.capacity_factor or 1.0) / shape.tp
    projected = 2 * (experts.latent or 0) * wide / shape.tp  # results of one projection, inputs of the other
    return {
        "moe": ((experts.latent or shape.hidden) * shape.etp + widths * experts.width) * routed + projected,
        "moe_act": experts.width * routed,
        "shared_experts": _widths(shape, settings) * experts.shared_width * wide / shape.tp,
    }


def kept_bytes(parts: Mapping[str, float], settings: ActivationSettings) -> float:
    """Return the bytes that a layer saves under selective recomputation."""
    again = set(settings.modules)
    if "moe" in again:
        again |= {"moe_act", "shared_experts"}
    return sum(size for name, size in parts.items() if name not in again)


def chunk_bytes(
    chunk: ModelChunk,
    shape: ModelShape,
    settings: ActivationSettings,
    batch: Microbatch,
    *,
    saved: Sequence[float] | None = None,
    ahead: Sequence[float] | None = None,
) -> tuple[float, float]:
    """Return the bytes that a chunk saves for a microbatch, and the peak of recomputation, which occurs once.

    Args:
        chunk: Contents.
        shape: Sizes of the model.
        settings: Recomputation and kernels.
        batch: Tokens of the microbatch.
        saved: Bytes that each layer saves; None: those of a GPT.
        ahead: Bytes that each layer of a depth of multi-token prediction saves; None: those of the last layer.
    """
    ends = _ends(chunk, shape, settings, batch)
    if saved is None:
        layers = [layer_bytes(shape, settings, batch, experts=kind) for kind in (False, True)]
        saved = [kept_bytes(layers[shape.has_experts(layer)], settings) for layer in chunk.layers]
        ahead = [kept_bytes(layers[shape.has_experts(shape.num_layers - 1)], settings)]
    last = sum(ahead or ()) if chunk.mtp else 0.0
    if settings.recompute != "full":
        return sum(saved) + ends + last * chunk.mtp, 0.0
    wide = float(shape.hidden * batch.tokens * settings.number_bytes)
    narrow = wide / shape.tp if settings.sequence_parallel else wide
    start = wide / shape.tp if settings.spread_inputs else narrow
    number = settings.recompute_layers
    if settings.method == "block":  # Megatron recomputes no depth of multi-token prediction
        again = min(number, len(saved))
        return again * start + sum(saved[again:]) + ends + last * chunk.mtp, max([0.0, *saved[:again]])
    # A depth is recomputed from its hidden states and embeddings, with the inputs of its projection (2 of `narrow`)
    # and of its last norm. The input of its output layer is saved.
    ends += chunk.mtp * (start - 4 * narrow)
    last += 3 * narrow if chunk.mtp else 0.0
    groups = [sum(saved[first : first + number]) for first in range(0, len(saved), number)]
    return len(groups) * start + ends, max([last, *groups])


def _ends(chunk: ModelChunk, shape: ModelShape, settings: ActivationSettings, batch: Microbatch) -> float:
    """Return the bytes of the embedding (dropout mask) and the output layer (two inputs, float32 logits).

    Each depth of multi-token prediction saves the same, and the projection of its two inputs.
    """
    wide = batch.tokens * settings.number_bytes
    narrow = wide / shape.tp if settings.sequence_parallel else wide
    logits = 4 * batch.tokens * shape.vocab / shape.tp
    total = (
        shape.hidden * narrow / settings.number_bytes if chunk.embedding and settings.hidden_dropout else 0.0
    )
    if chunk.output:
        total += 2 * shape.hidden * narrow + logits
    return total + chunk.mtp * (6 * shape.hidden * narrow + logits)
