"""The sizes of a model, read from any section with the field names of Megatron Core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

from mb_config.plan.errors import PlanError
from mb_config.plan.hybrid_pattern import HybridPattern, layers_ahead, layers_of
from mb_config.plan.size_limits import reject_huge_model

UNCOUNTED = {
    "experimental_attention_variant": "its layers have parameters of their own",
    "heterogeneous_block_specs": "its layers differ in size",
    "is_hybrid_model": "state-space layers are not counted",
    "hybrid_override_pattern": "state-space layers are not counted",
    "mtp_hybrid_override_pattern": "state-space layers are not counted",
    "moe_latent_size": "its projections are not counted",
    "mimo_submodules": "submodules of other models are not counted",
}
"""Fields that change the number of parameters in ways that are not known here, and why there is no plan then."""


WEIGHT_SHARDS = (
    "tensor_parallel_num_weight_shards",
    "expert_tensor_parallel_num_weight_shards",
    "gtp_weight_remat_size",
    "expert_gtp_weight_remat_size",
)
"""Sizes above 1 spread weights over further ranks, which is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Sizes of multi-latent attention."""

    q_rank: int | None
    """Width to which queries are compressed; None: they are not."""
    kv_rank: int
    """Width to which keys and values are compressed."""
    qk_head: int
    """Part of a query's or key's head without position."""
    qk_position: int
    """Part of it with a rotary position, which all heads of a key share."""
    v_head: int
    """Width of a value's head."""
    down_copied: bool
    """Every tensor-parallel rank holds the compressing projections whole, as with Transformer Engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """Sizes of a mixture of experts."""

    number: int
    """Routed experts of a layer."""
    width: int
    """Inner width of one."""
    visited: int
    """Experts that a token visits."""
    layers: tuple[bool, ...]
    """For each layer, whether it has experts."""
    shared_width: int
    """Inner width of the shared experts together; 0: none."""
    shared_gate: bool
    """A learned gate weighs the shared experts."""
    capacity_factor: float | None
    """Tokens that an expert takes over its even share, where it is filled up to it; None: what comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """Sizes of an encoder of pictures and of its projection, and the ranks that share it."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    """Inner width of its MLPs."""
    projection: int
    """Inner width of the projection."""
    patch: int
    """Pixels of a patch's side."""
    num_patches: int
    """Patches of a picture."""
    tp: int
    language_first: int
    """First rank of the language model; 0: the encoder is on the same ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model, decoder-only (which may see) or a T5, and the ranks that share it."""

    num_layers: int
    """Of a T5: of its decoder."""
    encoder_layers: int
    """Of a T5, whose decoder then attends to the encoder, too; 0: there is no encoder."""
    hidden: int
    heads: int
    groups: int
    """Key and value heads."""
    head: int
    """Width of a head."""
    ffn: int
    """Inner width of a dense MLP."""
    gated: bool
    norm_tensors: int
    """Tensors in a norm: 1 (RMSNorm) or 2 (LayerNorm)."""
    bias: bool
    """Biases on the linear layers."""
    qkv_bias: bool
    qk_norm: bool
    output_gate: bool
    softmax_sink: bool
    """A learned number for each head in the softmax."""
    latent: LatentAttention | None
    experts: ExpertShape | None
    pattern: HybridPattern | None
    """Layers of a hybrid model; None: they are all alike, or some have experts."""
    vision: VisionShape | None = None
    """What sees, before the language model; None: nothing."""
    mtp_layers: int
    """Depths of multi-token prediction."""
    mtp_repeated: bool
    """All depths share one layer."""
    tied: bool
    vocab: int
    """Rows of the embedding, padding included."""
    positions: int
    """Rows of the learned position embedding; 0: none."""
    tp: int
    pp: int
    vp: int
    cp: int
    ep: int
    etp: int

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one replica of the dense part."""
        return self.tp * self.pp * self.cp

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold one replica of the experts."""
        return self.etp * self.ep * self.pp

    def has_experts(self, layer: int) -> bool:
        """Say whether a layer, counted from 0, has experts."""
        return self.experts is not None and self.experts.layers[layer]


_ABSENT = object()


def read_field(section: object, name: str, default: Any = None) -> Any:
    """Return a field of an object or a mapping, or of its `transformer` mapping, or the default where it has none."""
    found = _own(section, name)
    if found is _ABSENT:
        extra = _own(section, "transformer")
        found = extra.get(name, _ABSENT) if isinstance(extra, Mapping) else _ABSENT
    return default if found is _ABSENT else found


def _own(section: object, name: str) -> Any:
    if isinstance(section, Mapping):
        return section.get(name, _ABSENT)
    return getattr(section, name, _ABSENT)


def read_shape(model: object, *, vocab_size: int | None = None) -> ModelShape:
    """Read the sizes of a model section, with Megatron Core's defaults for what it does not say.

    Args:
        model: Any object or mapping with the field names of Megatron's TransformerConfig and GPTModel; what it
            lacks is looked up in its mapping `transformer`, if it has one.
        vocab_size: Rows of the embedding where the section does not say them (a tokenizer's, padded).

    Raises:
        PlanError: a size is missing, is not positive, is huge, or belongs to a model that is not counted here.
    """
    reject_huge_model(lambda name: read_field(model, name))
    for name, why in UNCOUNTED.items():
        if read_field(model, name):
            raise PlanError(f"model.{name}: not counted ({name}={read_field(model, name)!r}), because {why}.")
    for name in WEIGHT_SHARDS:
        if (read_field(model, name) or 1) > 1:
            raise PlanError(
                f"model.{name}: not counted ({name}={read_field(model, name)}), because it spreads weights."
            )
    hidden, heads = _size(model, "hidden_size"), _size(model, "num_attention_heads")
    ffn = _optional(model, "ffn_hidden_size") or 4 * hidden
    tp, pp = _degree(model, "tensor_model_parallel_size"), _degree(model, "pipeline_model_parallel_size")
    encoder_layers = _encoder_layers(model)
    if encoder_layers and pp > 1:
        raise PlanError(
            f"model.pipeline_model_parallel_size: is {pp}, because an encoder and its decoder are one stage. Set it "
            "to 1."
        )
    bias = bool(read_field(model, "add_bias_linear", True))
    pattern = read_field(model, "hybrid_layer_pattern")
    return ModelShape(
        num_layers=_size(model, "num_layers") if pattern is None else len(layers_of(pattern)),
        encoder_layers=encoder_layers,
        hidden=hidden,
        heads=heads,
        groups=_optional(model, "num_query_groups") or heads,
        head=_optional(model, "kv_channels") or hidden // heads,
        ffn=ffn,
        gated=bool(read_field(model, "gated_linear_unit", False)),
        norm_tensors=1 if read_field(model, "normalization", "LayerNorm") == "RMSNorm" else 2,
        bias=bias,
        qkv_bias=bias or bool(read_field(model, "add_qkv_bias", False)),
        qk_norm=bool(read_field(model, "qk_layernorm", False)),
        output_gate=bool(read_field(model, "attention_output_gate", False)),
        softmax_sink=read_field(model, "softmax_type", "vanilla") == "learnable",
        latent=_latent(model) if read_field(model, "multi_latent_attention", False) else None,
        experts=_experts(model, ffn) if read_field(model, "num_moe_experts") else None,
        pattern=None if pattern is None else _pattern(model, pattern, hidden),
        vision=_vision(model, hidden, tp) if read_field(model, "vision_num_layers") else None,
        mtp_layers=(read_field(model, "mtp_num_layers") or 0)
        if pattern is None
        else len(layers_ahead(pattern)),
        mtp_repeated=bool(read_field(model, "mtp_use_repeated_layer", False)),
        tied=bool(read_field(model, "share_embeddings_and_output_weights", False)),
        vocab=_vocabulary(model, vocab_size),
        positions=_positions(model),
        tp=tp,
        pp=pp,
        vp=_degree(model, "virtual_pipeline_model_parallel_size") if pp > 1 else 1,
        cp=_degree(model, "context_parallel_size"),
        ep=_degree(model, "expert_model_parallel_size"),
        etp=_optional(model, "expert_tensor_parallel_size") or tp,
    )


def _pattern(model: object, pattern: str, hidden: int) -> HybridPattern:
    def size(name: str, default: int) -> int:
        return _optional(model, name) or default

    if "E" in pattern and not read_field(model, "num_moe_experts"):
        raise PlanError(
            f"model.num_moe_experts: not set, because {pattern!r} has layers with experts (E). Set it, or write "
            "other layers."
        )
    width = size("mamba_head_dim", 64)
    return HybridPattern(
        pattern=pattern,
        state=size("mamba_state_dim", 128),
        mamba_groups=size("mamba_num_groups", 8),
        mamba_heads=_optional(model, "mamba_num_heads") or 2 * hidden // width,
        mamba_head=width,
        key_channels=size("linear_num_key_heads", 16) * size("linear_key_head_dim", 128),
        value_heads=size("linear_num_value_heads", 32),
        value_head=size("linear_value_head_dim", 128),
        delta_filter=size("linear_conv_kernel_dim", 4),
    )


def _vision(model: object, hidden: int, tp: int) -> VisionShape:
    width, patch, side = (_size(model, name) for name in ("vision_hidden_size", "patch_size", "image_size"))
    heads = _size(model, "vision_num_attention_heads")
    if width % heads or side % patch:
        raise PlanError(
            f"model.vision_hidden_size: {width} channels for {heads} heads, and patches of {patch} in pictures of "
            f"{side} pixels, do not divide, because each head and each patch is whole. Change the sizes."
        )
    return VisionShape(
        layers=_size(model, "vision_num_layers"),
        hidden=width,
        heads=heads,
        ffn=_optional(model, "vision_ffn_hidden_size") or 4 * width,
        projection=_optional(model, "projector_hidden_size") or hidden,
        patch=patch,
        num_patches=(side // patch) ** 2,
        tp=_optional(model, "vision_tensor_model_parallel_size") or tp,
        language_first=read_field(model, "language_rank_offset", 0),
    )


def smallest_world(model: object) -> int:
    """Return the smallest number of processes that hold a whole model, by the parallel sizes of its section.

    Raises:
        PlanError: a parallel size is not positive.
    """
    tp, pp = _degree(model, "tensor_model_parallel_size"), _degree(model, "pipeline_model_parallel_size")
    experts = _degree(model, "expert_model_parallel_size") * (
        _optional(model, "expert_tensor_parallel_size") or tp
    )
    dense = tp * pp * _degree(model, "context_parallel_size")
    if read_field(model, "vision_num_layers"):
        first = read_field(model, "language_rank_offset", 0)
        vision = _optional(model, "vision_tensor_model_parallel_size") or tp
        dense = first + dense if first else lcm(vision, dense)
    return lcm(dense, experts * pp) if read_field(model, "num_moe_experts") else dense


def _encoder_layers(model: object) -> int:
    """A model with an encoder says how long its decoder's sequences are, and maybe how many layers the encoder has."""
    if read_field(model, "decoder_seq_length") is None:
        return _optional(model, "encoder_num_layers") or 0
    return _optional(model, "encoder_num_layers") or _size(model, "num_layers")


def _latent(model: object) -> LatentAttention:
    return LatentAttention(
        q_rank=read_field(model, "q_lora_rank", 512),
        kv_rank=read_field(model, "kv_lora_rank", 512),
        qk_head=read_field(model, "qk_head_dim", 128),
        qk_position=read_field(model, "qk_pos_emb_head_dim", 64),
        v_head=read_field(model, "v_head_dim", 128),
        down_copied=read_field(model, "transformer_impl", "transformer_engine") != "local",
    )


def _experts(model: object, ffn: int) -> ExpertShape:
    layers = _size(model, "num_layers")
    padded = read_field(model, "moe_pad_expert_input_to_capacity", False)
    return ExpertShape(
        number=_size(model, "num_moe_experts"),
        width=_optional(model, "moe_ffn_hidden_size") or ffn,
        visited=read_field(model, "moe_router_topk", 2),
        layers=_expert_layers(read_field(model, "moe_layer_freq", 1), layers),
        shared_width=read_field(model, "moe_shared_expert_intermediate_size") or 0,
        shared_gate=bool(read_field(model, "moe_shared_expert_gate", False)),
        capacity_factor=read_field(model, "moe_expert_capacity_factor") if padded else None,
    )


def _expert_layers(frequency: Any, layers: int) -> tuple[bool, ...]:
    if isinstance(frequency, int) and frequency >= 1:
        return tuple(layer % frequency == 0 for layer in range(layers))
    if isinstance(frequency, list | tuple) and len(frequency) == layers:
        return tuple(bool(flag) for flag in frequency)
    raise PlanError(
        f"model.moe_layer_freq: {frequency!r} says nothing about {layers} layers, because it must be a number of "
        "layers or hold one entry for each. Correct it."
    )


def _positions(model: object) -> int:
    if read_field(model, "position_embedding_type", "learned_absolute") != "learned_absolute":
        return 0
    lengths = [read_field(model, name) for name in ("seq_length", "decoder_seq_length")]
    rows = read_field(model, "max_position_embeddings") or max(
        (length for length in lengths if length), default=None
    )
    if rows is None:
        raise PlanError(
            "model.seq_length: not set, because it sizes the learned position embedding. Set it or "
            "model.max_position_embeddings."
        )
    return int(rows)


def _vocabulary(model: object, given: int | None) -> int:
    rows = read_field(model, "vocab_size") or given
    if rows is None:
        raise PlanError(
            "model.vocab_size: not set, because the embedding's size follows from it or from the tokenizer. Set it."
        )
    return int(rows)


def _size(model: object, name: str) -> int:
    size = read_field(model, name)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise PlanError(f"model.{name}: must be 1 or more, not {size!r}, because it is a size. Set it.")
    return size


def _optional(model: object, name: str) -> int | None:
    return None if read_field(model, name) is None else _size(model, name)


def _degree(model: object, name: str) -> int:
    return _optional(model, name) or 1
