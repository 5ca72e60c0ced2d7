"""Sizes of a model and its layout, as the prediction reads them from a section or a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mb_plan.errors import PlanError
from mb_plan.shape.fields import read_field

ATTENTION, LATENT, MLP, EXPERTS, MAMBA = "*", "+", "-", "E", "M"
KINDS = (ATTENTION, LATENT, MLP, EXPERTS, MAMBA)
"""Letters of the parts of a layer, those of Megatron's patterns of hybrid models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a model and its layout."""

    parts: str
    """One letter of `KINDS` for each part, in order, without those of multi-token prediction."""
    predictions: tuple[str, ...]
    """Parts of each depth of multi-token prediction."""
    hidden: int
    heads: int
    groups: int
    head: int
    ffn: int
    gated: bool
    bias: bool
    """Linear layers have biases."""
    window: float | None
    """Positions to which a token of a layer with a sliding window attends; None: no windows."""
    windowed: float
    """Fraction of the attention layers with a window."""
    q_rank: int
    kv_rank: int
    qk_head: int
    qk_position: int
    v_head: int
    experts: int
    top_k: int
    expert_width: int
    shared_width: int
    expert_hidden: int
    """Width of the input of the experts: the hidden size, or that of a projection."""
    mamba_inner: int
    mamba_groups: int
    mamba_state: int
    mamba_heads: int
    vocab: int
    tp: int
    pp: int
    vp: int
    cp: int
    ep: int


def read_sizes(model: Any, *, vocab_size: int | None = None) -> Sizes:
    """Read the sizes of a decoder-only or hybrid model with Megatron's field names.

    Raises:
        PlanError: The model has parts whose time is not modelled, or a size is missing.
    """
    _reject(model)
    hidden, heads = _required(model, "hidden_size"), _required(model, "num_attention_heads")
    head = read_field(model, "kv_channels") or hidden // heads
    ffn = read_field(model, "ffn_hidden_size") or 4 * hidden
    main, predictions = _parts(model)
    mamba_head = read_field(model, "mamba_head_dim", 64)
    mamba_heads = read_field(model, "mamba_num_heads") or 2 * hidden // mamba_head
    frequency = read_field(model, "window_attn_skip_freq")
    window = read_field(model, "window_size")
    return Sizes(
        parts=main,
        predictions=predictions,
        hidden=hidden,
        heads=heads,
        groups=read_field(model, "num_query_groups") or heads,
        head=head,
        ffn=ffn,
        gated=bool(read_field(model, "gated_linear_unit", False)),
        bias=bool(read_field(model, "add_bias_linear", False)),
        window=None if window is None else float(sum(window) + 1),
        windowed=_windowed(frequency) if window is not None else 0.0,
        q_rank=read_field(model, "q_lora_rank") or 0,
        kv_rank=read_field(model, "kv_lora_rank") or 512,
        qk_head=read_field(model, "qk_head_dim") or 128,
        qk_position=read_field(model, "qk_pos_emb_head_dim") or 64,
        v_head=read_field(model, "v_head_dim") or 128,
        experts=read_field(model, "num_moe_experts") or 0,
        top_k=read_field(model, "moe_router_topk") or 2,
        expert_width=read_field(model, "moe_ffn_hidden_size") or ffn,
        shared_width=read_field(model, "moe_shared_expert_intermediate_size") or 0,
        expert_hidden=read_field(model, "moe_latent_size") or hidden,
        mamba_inner=mamba_heads * mamba_head,
        mamba_groups=read_field(model, "mamba_num_groups", 8),
        mamba_state=read_field(model, "mamba_state_dim", 128),
        mamba_heads=mamba_heads,
        vocab=vocab_size or _required(model, "vocab_size"),
        tp=_degree(model, "tensor_model_parallel_size"),
        pp=_degree(model, "pipeline_model_parallel_size"),
        vp=_degree(model, "virtual_pipeline_model_parallel_size"),
        cp=_degree(model, "context_parallel_size"),
        ep=_degree(model, "expert_model_parallel_size"),
    )


def _reject(model: Any) -> None:
    unknown: Mapping[str, str] = {
        "decoder_seq_length": "an encoder and a decoder",
        "vision_num_layers": "a vision encoder",
        "experimental_attention_variant": "linear attention",
    }
    for name, what in unknown.items():
        if read_field(model, name):
            raise PlanError(f"model.{name}: the time of {what} is not modelled. Measure a few steps.")


def _parts(model: Any) -> tuple[str, tuple[str, ...]]:
    pattern = read_field(model, "hybrid_layer_pattern")
    if pattern:
        main, *further = str(pattern).split("/")
        found = [main.replace("|", ""), *(each.replace("|", "") for each in further)]
        unknown = sorted({letter for part in found for letter in part} - {*KINDS})
        if unknown:
            raise PlanError(
                f"model.hybrid_layer_pattern: the time of layers {', '.join(unknown)} is not modelled. Measure a few "
                "steps."
            )
        return found[0], tuple(found[1:])
    attention = LATENT if read_field(model, "multi_latent_attention") else ATTENTION
    layers = _required(model, "num_layers")
    has_experts = _expert_layers(read_field(model, "moe_layer_freq", 1), layers)
    experts = bool(read_field(model, "num_moe_experts"))
    parts = [attention + (EXPERTS if experts and has_experts[layer] else MLP) for layer in range(layers)]
    depths = read_field(model, "mtp_num_layers") or 0
    return "".join(parts), (parts[-1],) * depths


def _expert_layers(frequency: Any, layers: int) -> list[bool]:
    if isinstance(frequency, int):
        return [layer % frequency == 0 for layer in range(layers)]
    return [bool(each) for each in frequency]


def _windowed(frequency: Any) -> float:
    if frequency is None:
        return 1.0
    if isinstance(frequency, int):
        return 1.0 - 1.0 / frequency
    return sum(map(bool, frequency)) / len(frequency)


def _degree(model: Any, name: str) -> int:
    return int(read_field(model, name) or 1)


def _required(model: Any, name: str) -> int:
    found = read_field(model, name)
    if not isinstance(found, int):
        raise PlanError(f"model.{name}: is {found!r}, so that the time of a step is not known. Set it.")
    return found
