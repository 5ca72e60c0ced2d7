"""Sizes of a model, read from a section with the field names of Megatron Core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from mb_plan.errors import PlanError
from mb_plan.shape.fields import read_field, reject_huge_model
from mb_plan.shape.hybrid_pattern import (
    ATTENTION,
    EXPERTS,
    LATENT,
    MLP,
    HybridPattern,
    layers_ahead,
    layers_of,
)

UNCOUNTED = {
    "experimental_attention_variant": "the parameters of its layers are not counted",
    "heterogeneous_block_specs": "its layers differ in size",
    "is_hybrid_model": "state-space layers are not counted",
    "hybrid_override_pattern": "state-space layers are not counted",
    "mtp_hybrid_override_pattern": "state-space layers are not counted",
    "mimo_submodules": "submodules of other models are not counted",
}
"""Fields that change the number of parameters in an unsupported way, to the reason."""

COLOURS = 3
"""Values of a pixel."""

WEIGHT_SHARDS = (
    "tensor_parallel_num_weight_shards",
    "expert_tensor_parallel_num_weight_shards",
    "gtp_weight_remat_size",
    "expert_gtp_weight_remat_size",
)
"""Fields that shard weights over additional ranks if above 1, which is not supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Sizes of multi-latent attention."""

    q_rank: int | None
    """Rank of the query compression; None: no compression."""
    kv_rank: int
    """Rank of the key and value compression."""
    qk_head: int
    """Width of the part of a query or key head without position."""
    qk_position: int
    """Width of the part with a rotary position, which all key heads share."""
    v_head: int
    """Width of a value head."""
    down_copied: bool
    """Every tensor-parallel rank holds full copies of the down projections, as with Transformer Engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """Sizes of a mixture of experts."""

    number: int
    """Routed experts per layer."""
    width: int
    """Inner width of an expert."""
    top_k: int
    """Experts per token (top-k)."""
    layers: tuple[bool, ...]
    """True for each layer with experts."""
    shared_width: int
    """Total inner width of the shared experts; 0: none."""
    shared_gate: bool
    """The shared experts have a learned gate."""
    latent: int | None
    """Width of the inputs and outputs of the routed experts, between two projections; None: the hidden size."""
    capacity_factor: float | None
    """Tokens per expert relative to an equal share, if experts are padded to it; None: no padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """Sizes of an image encoder and its projection, and its tensor-parallel size."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    """Inner width of the MLPs."""
    projection: int
    """Inner width of the projection."""
    patch: int
    """Side of a patch in pixels."""
    num_patches: int
    """Patches per image."""
    tp: int
    language_first: int
    """First rank of the language model; 0: the encoder is on the same ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder-only model, a vision-language model or a T5, and its parallel sizes."""

    num_layers: int
    """Number of layers; of a T5, those of the decoder."""
    encoder_layers: int
    """Layers of a T5 encoder, to which the decoder cross-attends; 0: no encoder."""
    hidden: int
    heads: int
    groups: int
    """Number of key and value heads."""
    head: int
    """Width of a head."""
    ffn: int
    """Inner width of a dense MLP."""
    gated: bool
    norm_tensors: int
    """Tensors per norm: 1 (RMSNorm) or 2 (LayerNorm)."""
    bias: bool
    """Linear layers have biases."""
    qkv_bias: bool
    qk_norm: bool
    qk_norm_over_all_heads: bool
    norms_of_layer: int
    """Norms of a layer of a GPT, without those of queries and keys: one to four."""
    output_gate: bool
    softmax_sink: bool
    """The softmax has a learned value for each head."""
    latent: LatentAttention | None
    experts: ExpertShape | None
    pattern: HybridPattern | None
    """Layers of a hybrid model; None: not a hybrid model."""
    window: tuple[int, int] | None
    """Attended positions to the left and right in layers with a sliding window, -1: all; None: no windows."""
    window_frequency: int | tuple[bool, ...] | None
    """All but each n-th layer have a window, or a flag for each layer; None: all have."""
    decoder_length: int | None
    """Tokens of a sequence of the decoder of a T5."""
    vision: VisionShape | None = None
    """Vision encoder; None: no encoder."""
    mtp_layers: int
    """Depths of multi-token prediction."""
    mtp_repeated: bool
    """All depths share one layer."""
    tied: bool
    vocab: int
    """Rows of the embedding, including padding."""
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
        """Number of ranks that hold one replica of the dense parameters."""
        return self.tp * self.pp * self.cp

    @property
    def expert_ranks(self) -> int:
        """Number of ranks that hold one replica of the experts."""
        return self.etp * self.ep * self.pp

    @property
    def smallest_world(self) -> int:
        """Smallest number of processes that holds one replica of every parameter."""
        dense = self.model_ranks
        if self.vision is not None:
            first = self.vision.language_first
            dense = first + dense if first else lcm(self.vision.tp, dense)
        return dense if self.experts is None else lcm(dense, self.expert_ranks)

    @property
    def hybrid(self) -> HybridPattern:
        """Sizes of the layers of a hybrid model.

        Raises:
            PlanError: It is none.
        """
        if self.pattern is None:
            raise PlanError(
                "model.hybrid_layer_pattern: is not set, but a layer is of a hybrid model. Set it."
            )
        return self.pattern

    @property
    def layers(self) -> tuple[str, ...]:
        """Letters of each layer of the main model, those of a decoder; a layer of a GPT has two."""
        if self.pattern is not None:
            return tuple(layers_of(self.pattern.pattern))
        attention = ATTENTION if self.latent is None else LATENT
        return tuple(
            attention + (EXPERTS if self.has_experts(layer) else MLP) for layer in range(self.num_layers)
        )

    @property
    def ahead(self) -> tuple[str, ...]:
        """Letters of each depth of multi-token prediction; in a GPT those of the last layer."""
        if self.pattern is not None:
            return tuple(layers_ahead(self.pattern.pattern))
        return self.layers[-1:] * self.mtp_layers

    @property
    def image_encoder(self) -> ModelShape:
        """Sizes of the layers of the vision encoder, which have biases and norms of two tensors.

        Raises:
            PlanError: There is none.
        """
        vision = self.vision
        if vision is None:
            raise PlanError("model.vision_num_layers: is not set, but a vision encoder is planned. Set it.")
        return replace(
            self,
            num_layers=vision.layers,
            hidden=vision.hidden,
            heads=vision.heads,
            groups=vision.heads,
            head=vision.hidden // vision.heads,
            ffn=vision.ffn,
            gated=False,
            norm_tensors=2,
            bias=True,
            qkv_bias=True,
            qk_norm=False,
            output_gate=False,
            softmax_sink=False,
            latent=None,
            experts=None,
            pattern=None,
            window=None,
            vision=None,
            tp=vision.tp,
        )

    def has_window(self, layer: int) -> bool:
        """Return True if a layer, counted from 0, has a sliding window."""
        frequency = self.window_frequency
        if self.window is None or frequency is None:
            return self.window is not None
        return (layer + 1) % frequency != 0 if isinstance(frequency, int) else frequency[layer]

    def has_experts(self, layer: int) -> bool:
        """Return True if a layer, counted from 0, has experts."""
        return self.experts is not None and self.experts.layers[layer]


def read_shape(model: object, *, vocab_size: int | None = None) -> ModelShape:
    """Read the sizes of a model section, with Megatron Core's defaults for fields that it does not set.

    Args:
        model: An object or mapping with the field names of Megatron's TransformerConfig and GPTModel. Missing fields
            are read from its mapping `transformer`, if it has one.
        vocab_size: Rows of the embedding if the section does not set them (padded size of the tokenizer).

    Raises:
        PlanError: If a size is missing, not positive or above the limits, or the model is not supported.
    """
    reject_huge_model(lambda name: read_field(model, name))
    _reject_unsupported(model)
    hidden, heads = _size(model, "hidden_size"), _size(model, "num_attention_heads")
    ffn = _optional(model, "ffn_hidden_size") or 4 * hidden
    tp, pp = _degree(model, "tensor_model_parallel_size"), _degree(model, "pipeline_model_parallel_size")
    bias = bool(read_field(model, "add_bias_linear", True))
    pattern = read_field(model, "hybrid_layer_pattern")
    layers = _size(model, "num_layers") if pattern is None else len(layers_of(pattern))
    return ModelShape(
        num_layers=layers,
        encoder_layers=_encoder_layers(model, pp),
        hidden=hidden,
        heads=heads,
        groups=_optional(model, "num_query_groups") or heads,
        head=_optional(model, "kv_channels") or hidden // heads,
        ffn=ffn,
        gated=bool(read_field(model, "gated_linear_unit", False)),
        norm_tensors=_norm_tensors(model),
        bias=bias,
        qkv_bias=bias or bool(read_field(model, "add_qkv_bias", False)),
        qk_norm=bool(read_field(model, "qk_layernorm", False)),
        qk_norm_over_all_heads=read_field(model, "qk_layernorm_scope", "head") == "all_heads",
        norms_of_layer=_norms_of_layer(model),
        output_gate=bool(read_field(model, "attention_output_gate", False)),
        softmax_sink=read_field(model, "softmax_type", "vanilla") == "learnable",
        latent=_latent(model) if read_field(model, "multi_latent_attention", False) else None,
        experts=_experts(model, ffn, layers) if read_field(model, "num_moe_experts") else None,
        pattern=None if pattern is None else _pattern(model, pattern, hidden),
        window=_window(model),
        window_frequency=_window_frequency(model, layers),
        decoder_length=read_field(model, "decoder_seq_length"),
        vision=_vision(model, hidden, tp) if read_field(model, "vision_num_layers") else None,
        mtp_layers=_mtp_layers(model, pattern),
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


def _norm_tensors(model: object) -> int:
    centred = read_field(model, "normalization", "LayerNorm") != "RMSNorm"
    return 2 if centred and read_field(model, "layernorm_bias", True) else 1


def _norms_of_layer(model: object) -> int:
    norms = 4 if read_field(model, "norm_position", "pre") == "pre_and_post" else 2
    shared = read_field(model, "residual_branches", "sequential") == "parallel_shared_norm"
    return norms - 1 if shared else norms


def _mtp_layers(model: object, pattern: str | None) -> int:
    return (read_field(model, "mtp_num_layers") or 0) if pattern is None else len(layers_ahead(pattern))


def _pattern(model: object, pattern: str, hidden: int) -> HybridPattern:
    """Read the sizes of a hybrid model, with Megatron's defaults.

    Raises:
        PlanError: The pattern has experts, and the section has none.
    """

    def size(name: str, default: int) -> int:
        return _optional(model, name) or default

    if "E" in pattern and not read_field(model, "num_moe_experts"):
        raise PlanError(
            f"model.num_moe_experts: is not set, but {pattern!r} has layers with experts (E). Set it, or use "
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
        key_head=size("linear_key_head_dim", 128),
        value_heads=size("linear_num_value_heads", 32),
        value_head=size("linear_value_head_dim", 128),
        delta_filter=size("linear_conv_kernel_dim", 4),
    )


def _vision(model: object, hidden: int, tp: int) -> VisionShape:
    """Read the sizes of a vision encoder and of its projection.

    Raises:
        PlanError: A size is missing, or heads or patches do not divide it.
    """
    width, patch, side = (_size(model, name) for name in ("vision_hidden_size", "patch_size", "image_size"))
    heads = _size(model, "vision_num_attention_heads")
    if width % heads or side % patch:
        raise PlanError(
            f"model.vision_hidden_size: {width} channels for {heads} heads, and patches of {patch} in images of "
            f"{side} pixels, do not divide. Heads and patches must have equal sizes. Change the sizes."
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


def _reject_unsupported(model: object) -> None:
    """Raise for a field that changes the number of parameters in an unsupported way."""
    for name, why in UNCOUNTED.items():
        if read_field(model, name):
            raise PlanError(
                f"model.{name}: is not supported ({name}={read_field(model, name)!r}), because {why}."
            )
    for name in WEIGHT_SHARDS:
        if (read_field(model, name) or 1) > 1:
            raise PlanError(
                f"model.{name}: is not supported ({name}={read_field(model, name)}), because it shards weights."
            )


def _encoder_layers(model: object, pp: int) -> int:
    """Return the layers of a T5 encoder. A model with `decoder_seq_length` has an encoder."""
    has_encoder = read_field(model, "decoder_seq_length") is not None
    layers = _optional(model, "encoder_num_layers") or (_size(model, "num_layers") if has_encoder else 0)
    if layers and pp > 1:
        raise PlanError(
            f"model.pipeline_model_parallel_size: is {pp}, but an encoder and its decoder are one stage. Set it "
            "to 1."
        )
    return layers


def _latent(model: object) -> LatentAttention:
    return LatentAttention(
        q_rank=read_field(model, "q_lora_rank", 512),
        kv_rank=read_field(model, "kv_lora_rank", 512),
        qk_head=read_field(model, "qk_head_dim", 128),
        qk_position=read_field(model, "qk_pos_emb_head_dim", 64),
        v_head=read_field(model, "v_head_dim", 128),
        down_copied=read_field(model, "transformer_impl", "transformer_engine") != "local",
    )


def _experts(model: object, ffn: int, layers: int) -> ExpertShape:
    padded = read_field(model, "moe_pad_expert_input_to_capacity", False)
    return ExpertShape(
        number=_size(model, "num_moe_experts"),
        width=_optional(model, "moe_ffn_hidden_size") or ffn,
        top_k=read_field(model, "moe_router_topk", 2),
        layers=_expert_layers(read_field(model, "moe_layer_freq", 1), layers),
        shared_width=read_field(model, "moe_shared_expert_intermediate_size") or 0,
        shared_gate=bool(read_field(model, "moe_shared_expert_gate", False)),
        latent=_optional(model, "moe_latent_size"),
        capacity_factor=read_field(model, "moe_expert_capacity_factor") if padded else None,
    )


def _window(model: object) -> tuple[int, int] | None:
    window = read_field(model, "window_size")
    return None if window is None else (int(window[0]), int(window[1]))


def _window_frequency(model: object, layers: int) -> int | tuple[bool, ...] | None:
    frequency = read_field(model, "window_attn_skip_freq")
    if frequency is None or (isinstance(frequency, int) and frequency >= 1):
        return frequency
    if isinstance(frequency, list | tuple) and len(frequency) == layers:
        return tuple(bool(flag) for flag in frequency)
    raise PlanError(
        f"model.window_attn_skip_freq: {frequency!r} is not valid for {layers} layers. It must be a positive integer "
        "or a list with one entry for each layer. Correct it."
    )


def _expert_layers(frequency: Any, layers: int) -> tuple[bool, ...]:
    if isinstance(frequency, int) and frequency >= 1:
        return tuple(layer % frequency == 0 for layer in range(layers))
    if isinstance(frequency, list | tuple) and len(frequency) == layers:
        return tuple(bool(flag) for flag in frequency)
    raise PlanError(
        f"model.moe_layer_freq: {frequency!r} is not valid for {layers} layers. It must be a positive integer or "
        "a list with one entry for each layer. Correct it."
    )


def _positions(model: object) -> int:
    """Return the rows of the learned position embedding; 0 without one.

    Raises:
        PlanError: Their number is not set.
    """
    if read_field(model, "position_embedding_type", "learned_absolute") != "learned_absolute":
        return 0
    lengths = [read_field(model, name) for name in ("seq_length", "decoder_seq_length")]
    rows = read_field(model, "max_position_embeddings") or max(
        (length for length in lengths if length), default=None
    )
    if rows is None:
        raise PlanError(
            "model.seq_length: is not set, but the learned position embedding has its size. Set it or "
            "model.max_position_embeddings."
        )
    return int(rows)


def _vocabulary(model: object, given: int | None) -> int:
    rows = read_field(model, "vocab_size") or given
    if rows is None:
        raise PlanError(
            "model.vocab_size: is not set, but the size of the embedding follows from it or from the tokenizer. Set it."
        )
    return int(rows)


def _size(model: object, name: str) -> int:
    size = read_field(model, name)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise PlanError(f"model.{name}: must be an integer of at least 1, not {size!r}. Set it.")
    return size


def _optional(model: object, name: str) -> int | None:
    return None if read_field(model, name) is None else _size(model, name)


def _degree(model: object, name: str) -> int:
    return _optional(model, name) or 1
