"""Names of weights in transformers' folders, by the names of Megatron's parameters: tables, and `origin_of`. No torch.

Megatron fuses query, key and value group by group, and concatenates gate and up projection; in both, a
tensor-parallel rank's part is the fusion of its parts of the single tensors.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mb_models.errors import HuggingFaceError
from mb_models.hf.family import HuggingFaceFamily, TensorOrigin

LAYER = "model.layers.{layer}."
EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"

OUTSIDE: Mapping[str, TensorOrigin] = {
    "embedding.word_embeddings.weight": TensorOrigin(tensors=(EMBEDDING,), split=0, vocabulary=True),
    "output_layer.weight": TensorOrigin(tensors=(OUTPUT,), split=0, vocabulary=True),
    "decoder.final_layernorm.weight": TensorOrigin(tensors=("model.norm.weight",)),
}
"""Parameter outside the layers -> its origin, in all families."""

_EXPERT = r"mlp\.experts\.local_experts\.(?P<expert>\d+)\."


def one(name: str, *, stem: str = LAYER, **how: Any) -> TensorOrigin:
    """Return the origin of a parameter that is one tensor of a layer."""
    return TensorOrigin(tensors=(stem + name,), **how)


def norms(pattern: str, fused: str, name: str) -> dict[str, TensorOrigin]:
    """Return the origins of a norm, which Transformer Engine fuses with the linear layer that follows."""
    return {
        rf"{pattern}\.weight": one(f"{name}.weight"),
        rf"{fused}\.layer_norm_weight": one(f"{name}.weight"),
    }


def gated_mlp(pattern: str, names: Sequence[str]) -> dict[str, TensorOrigin]:
    """Return the origins of an MLP with a gate; `names` are those of gate, up and down projection."""
    gate, up, down = (LAYER + name for name in names)
    return {
        rf"{pattern}linear_fc1\.{kind}": TensorOrigin(
            tensors=(f"{gate}.{kind}", f"{up}.{kind}"), form="glu", split=0
        )
        for kind in ("weight", "bias")
    } | {
        rf"{pattern}linear_fc2\.weight": TensorOrigin(tensors=(f"{down}.weight",), split=1),
        rf"{pattern}linear_fc2\.bias": TensorOrigin(tensors=(f"{down}.bias",)),
    }


def projections(stem: str) -> tuple[str, str, str]:
    """Return the names of gate, up and down projection in most families."""
    return f"{stem}gate_proj", f"{stem}up_proj", f"{stem}down_proj"


NORMS: Mapping[str, TensorOrigin] = {
    **norms("input_layernorm", r"self_attention\.linear_qkv", "input_layernorm"),
    **norms("pre_mlp_layernorm", r"mlp\.linear_fc1", "post_attention_layernorm"),
}
"""Norms before attention and MLP."""

ATTENTION: Mapping[str, TensorOrigin] = {
    **{
        rf"self_attention\.linear_qkv\.{kind}": TensorOrigin(
            tensors=tuple(f"{LAYER}self_attn.{part}_proj.{kind}" for part in "qkv"), form="qkv", split=0
        )
        for kind in ("weight", "bias")
    },
    r"self_attention\.linear_proj\.weight": one("self_attn.o_proj.weight", split=1),
    r"self_attention\.linear_proj\.bias": one("self_attn.o_proj.bias"),
}
"""Attention with separate query, key and value."""

HEAD_NORMS: Mapping[str, TensorOrigin] = {
    rf"self_attention\.{part}_layernorm\.weight": one(f"self_attn.{part}_norm.weight") for part in "qk"
}
"""Norms of queries and keys, head by head."""

DENSE: Mapping[str, TensorOrigin] = gated_mlp(r"mlp\.", projections("mlp."))
"""MLP of dense layers."""

LLAMA: Mapping[str, TensorOrigin] = {**NORMS, **ATTENTION, **DENSE}


POST_NORMS: Mapping[str, TensorOrigin] = {
    r"self_attn_bda\.norm\.weight": one("post_attention_layernorm.weight"),
    r"mlp_bda\.norm\.weight": one("post_feedforward_layernorm.weight"),
}
"""Norms after attention and MLP."""

SANDWICH: Mapping[str, TensorOrigin] = {
    **ATTENTION,
    **DENSE,
    **norms("input_layernorm", r"self_attention\.linear_qkv", "input_layernorm"),
    **norms("pre_mlp_layernorm", r"mlp\.linear_fc1", "pre_feedforward_layernorm"),
    **POST_NORMS,
}
"""Layers with norms before and after attention and MLP."""


POST_NORM_LAYERS: Mapping[str, TensorOrigin] = {**ATTENTION, **DENSE, **HEAD_NORMS, **POST_NORMS}
"""Layers with norms of queries and keys, and norms after attention and MLP alone."""


def experts(stem: str, *, router: str, names: Sequence[str] | None = None) -> dict[str, TensorOrigin]:
    """Return the origins of experts and router; `stem` is the name of the experts with {expert}."""
    return {
        r"mlp\.router\.weight": one(f"{router}.weight"),
        **gated_mlp(_EXPERT, names or projections(f"{stem}{{expert}}.")),
    }


PHI3: Mapping[str, TensorOrigin] = {
    **NORMS,
    r"self_attention\.linear_qkv\.weight": one("self_attn.qkv_proj.weight", form="qkv", split=0, packed=True),
    r"self_attention\.linear_proj\.weight": one("self_attn.o_proj.weight", split=1),
    r"mlp\.linear_fc1\.weight": one("mlp.gate_up_proj.weight", form="glu", split=0, packed=True),
    r"mlp\.linear_fc2\.weight": one("mlp.down_proj.weight", split=1),
}

MIXTRAL: Mapping[str, TensorOrigin] = {
    **NORMS,
    **ATTENTION,
    **experts(
        "",
        router="block_sparse_moe.gate",
        names=[f"block_sparse_moe.experts.{{expert}}.{name}" for name in ("w1", "w3", "w2")],
    ),
}


_stacked = partial(one, stem=f"{LAYER}mlp.experts.", stacked=True)
"""Return the origin of a parameter of one expert in a tensor of all experts of a layer."""


GPT_OSS: Mapping[str, TensorOrigin] = {
    **NORMS,
    **ATTENTION,
    r"self_attention\.core_attention\.softmax_offset": one("self_attn.sinks", split=0),
    r"mlp\.router\.weight": one("mlp.router.weight"),
    r"mlp\.router\.bias": one("mlp.router.bias"),
    rf"{_EXPERT}linear_fc1\.weight": _stacked("gate_up_proj", form="glu", split=0),
    rf"{_EXPERT}linear_fc1\.bias": _stacked("gate_up_proj_bias", form="glu", split=0),
    rf"{_EXPERT}linear_fc2\.weight": _stacked("down_proj", split=1),
    rf"{_EXPERT}linear_fc2\.bias": _stacked("down_proj_bias"),
}

QWEN3_MOE: Mapping[str, TensorOrigin] = {**LLAMA, **HEAD_NORMS, **experts("mlp.experts.", router="mlp.gate")}

QWEN2_MOE: Mapping[str, TensorOrigin] = {
    **LLAMA,
    **experts("mlp.experts.", router="mlp.gate"),
    **gated_mlp(r"mlp\.shared_experts\.", projections("mlp.shared_expert.")),
    r"mlp\.shared_experts\.gate_weight": one("mlp.shared_expert_gate.weight"),
}

_ROUTED: Mapping[str, TensorOrigin] = {
    **DENSE,
    **experts("mlp.experts.", router="mlp.gate"),
    r"mlp\.router\.expert_bias": one("mlp.gate.e_score_correction_bias"),
    **gated_mlp(r"mlp\.shared_experts\.", projections("mlp.shared_experts.")),
}
"""MLP, or routed and shared experts."""

GLM4_MOE: Mapping[str, TensorOrigin] = {**NORMS, **ATTENTION, **HEAD_NORMS, **_ROUTED}

DEEPSEEK: Mapping[str, TensorOrigin] = {
    **NORMS,
    **_ROUTED,
    r"self_attention\.linear_proj\.weight": one("self_attn.o_proj.weight", split=1),
    r"self_attention\.linear_q_proj\.weight": one("self_attn.q_proj.weight", split=0),
    r"self_attention\.linear_q_down_proj\.weight": one("self_attn.q_a_proj.weight", split=0),
    r"self_attention\.linear_q_up_proj\.weight": one("self_attn.q_b_proj.weight", split=0),
    r"self_attention\.linear_kv_down_proj\.weight": one("self_attn.kv_a_proj_with_mqa.weight", split=0),
    r"self_attention\.linear_kv_up_proj\.weight": one("self_attn.kv_b_proj.weight", split=0),
    **norms(r"self_attention\.q_layernorm", r"self_attention\.linear_q_up_proj", "self_attn.q_a_layernorm"),
    **norms(
        r"self_attention\.kv_layernorm", r"self_attention\.linear_kv_up_proj", "self_attn.kv_a_layernorm"
    ),
}

COHERE: Mapping[str, TensorOrigin] = {
    **ATTENTION,
    **DENSE,
    r"input_layernorm\.weight": one("input_layernorm.weight"),
}
"""Layers with one norm."""

NEOX = "gpt_neox.layers.{layer}."


def _neox(pattern: str, name: str, *, weight: int | None, bias: int | None) -> dict[str, TensorOrigin]:
    """Return the origins of a linear layer; `weight` and `bias` are the dimensions that ranks share."""
    return {
        rf"{pattern}\.weight": one(f"{name}.weight", stem=NEOX, split=weight),
        rf"{pattern}\.bias": one(f"{name}.bias", stem=NEOX, split=bias),
    }


def _neox_norm(pattern: str, fused: str, name: str) -> dict[str, TensorOrigin]:
    return {
        rf"({pattern}\.|{fused}\.layer_norm_){kind}": one(f"{name}.{kind}", stem=NEOX)
        for kind in ("weight", "bias")
    }


GPT_NEOX: Mapping[str, TensorOrigin] = {
    **_neox_norm("input_layernorm", r"self_attention\.linear_qkv", "input_layernorm"),
    **_neox_norm("pre_mlp_layernorm", r"mlp\.linear_fc1", "post_attention_layernorm"),
    # query, key and value are fused head by head in both formats
    **_neox(r"self_attention\.linear_qkv", "attention.query_key_value", weight=0, bias=0),
    **_neox(r"self_attention\.linear_proj", "attention.dense", weight=1, bias=None),
    **_neox(r"mlp\.linear_fc1", "mlp.dense_h_to_4h", weight=0, bias=0),
    **_neox(r"mlp\.linear_fc2", "mlp.dense_4h_to_h", weight=1, bias=None),
}

GPT_NEOX_OUTSIDE: Mapping[str, TensorOrigin] = {
    "embedding.word_embeddings.weight": TensorOrigin(
        tensors=("gpt_neox.embed_in.weight",), split=0, vocabulary=True
    ),
    "output_layer.weight": TensorOrigin(tensors=("embed_out.weight",), split=0, vocabulary=True),
    **{
        f"decoder.final_layernorm.{kind}": TensorOrigin(tensors=(f"gpt_neox.final_layer_norm.{kind}",))
        for kind in ("weight", "bias")
    },
}

BACKBONE = "backbone.layers.{layer}."


_of_layer = partial(one, stem=BACKBONE)
"""Return the origin of a parameter that is one tensor of a hybrid's layer."""


HYBRID_OUTSIDE: Mapping[str, TensorOrigin] = {
    "embedding.word_embeddings.weight": TensorOrigin(
        tensors=("backbone.embeddings.weight",), split=0, vocabulary=True
    ),
    "output_layer.weight": TensorOrigin(tensors=(OUTPUT,), split=0, vocabulary=True),
    "decoder.final_norm.weight": TensorOrigin(tensors=("backbone.norm_f.weight",)),
}

MAMBA: Mapping[str, TensorOrigin] = {
    r"(mixer\.in_proj\.layer_norm_weight|norm\.weight)": _of_layer("norm.weight"),
    r"mixer\.in_proj\.weight": _of_layer("mixer.in_proj.weight", form="mamba", split=0, packed=True),
    r"mixer\.conv1d_weight": _of_layer("mixer.conv1d.weight", form="convolution", split=0, packed=True),
    r"mixer\.conv1d_bias": _of_layer("mixer.conv1d.bias", form="convolution", split=0, packed=True),
    **{rf"mixer\.{name}": _of_layer(f"mixer.{name}", split=0) for name in ("dt_bias", "A_log", "D")},
    r"mixer\.norm\.weight": _of_layer("mixer.norm.weight", split=0),
    r"mixer\.out_proj\.weight": _of_layer("mixer.out_proj.weight", split=1),
}
"""Mamba 2 layers."""


def _plain_mlp(pattern: str, stem: str) -> dict[str, TensorOrigin]:
    return {
        rf"{pattern}linear_fc1\.weight": _of_layer(f"{stem}up_proj.weight", split=0),
        rf"{pattern}linear_fc2\.weight": _of_layer(f"{stem}down_proj.weight", split=1),
    }


NEMOTRON_H: Mapping[str, TensorOrigin] = {
    **MAMBA,
    r"(input_layernorm\.weight|self_attention\.linear_qkv\.layer_norm_weight)": _of_layer("norm.weight"),
    r"(pre_mlp_layernorm\.weight|mlp\.linear_fc1\.layer_norm_weight)": _of_layer("norm.weight"),
    r"self_attention\.linear_qkv\.weight": TensorOrigin(
        tensors=tuple(f"{BACKBONE}mixer.{part}_proj.weight" for part in "qkv"), form="qkv", split=0
    ),
    r"self_attention\.linear_proj\.weight": _of_layer("mixer.o_proj.weight", split=1),
    **_plain_mlp(r"mlp\.", "mixer."),
    **_plain_mlp(_EXPERT, "mixer.experts.{expert}."),
    **_plain_mlp(r"mlp\.shared_experts\.", "mixer.shared_experts."),
    **{
        rf"mlp\.{name}\.weight": _of_layer(f"mixer.{name}.weight")
        for name in ("fc1_latent_proj", "fc2_latent_proj")
    },
    r"mlp\.router\.weight": _of_layer("mixer.gate.weight"),
    r"mlp\.router\.expert_bias": _of_layer("mixer.gate.e_score_correction_bias"),
}


QWEN3_NEXT: Mapping[str, TensorOrigin] = {
    r"(input_layernorm\.weight|self_attention\.(linear_qkv|in_proj)\.layer_norm_weight)": one(
        "input_layernorm.weight"
    ),
    r"(pre_mlp_layernorm\.weight|mlp\.linear_fc1\.layer_norm_weight)": one("post_attention_layernorm.weight"),
    r"self_attention\.linear_qkv\.weight": TensorOrigin(
        tensors=tuple(f"{LAYER}self_attn.{part}_proj.weight" for part in "qkv"), form="gated_qkv", split=0
    ),
    r"self_attention\.linear_proj\.weight": one("self_attn.o_proj.weight", split=1),
    **HEAD_NORMS,
    r"self_attention\.in_proj\.weight": TensorOrigin(
        tensors=tuple(f"{LAYER}linear_attn.in_proj_{part}.weight" for part in ("qkvz", "ba")),
        form="gated_delta",
        split=0,
    ),
    r"self_attention\.conv1d\.weight": one(
        "linear_attn.conv1d.weight", form="gated_delta_convolution", split=0, packed=True
    ),
    **{rf"self_attention\.{name}": one(f"linear_attn.{name}", split=0) for name in ("dt_bias", "A_log")},
    r"self_attention\.out_norm\.weight": one("linear_attn.norm.weight", offset=1.0),
    r"self_attention\.out_proj\.weight": one("linear_attn.out_proj.weight", split=1),
    **DENSE,
    **experts("mlp.experts.", router="mlp.gate"),
    **gated_mlp(r"mlp\.shared_experts\.", projections("mlp.shared_expert.")),
    r"mlp\.shared_experts\.gate_weight": one("mlp.shared_expert_gate.weight"),
}
"""Layers of gated delta or attention, each with experts or an MLP, which are two layers of a pattern."""

QWEN3_NEXT_OUTSIDE: Mapping[str, TensorOrigin] = {
    **{name: origin for name, origin in OUTSIDE.items() if not name.startswith("decoder.")},
    "decoder.final_norm.weight": OUTSIDE["decoder.final_layernorm.weight"],
}

_PARAMETER = re.compile(r"decoder\.layers\.(?P<layer>\d+)\.(?P<rest>.+)")
_GROUPED = re.compile(r"\.experts\.(?P<linear>linear_fc[12])\.(?P<kind>weight|bias)(?P<expert>\d+)$")


def _outside(family: HuggingFaceFamily) -> Mapping[str, TensorOrigin]:
    return (family.outside or OUTSIDE) if family.hybrid is None else family.hybrid.outside


def output_tensor(family: HuggingFaceFamily) -> str:
    """Return the name of the output layer's tensor."""
    (name,) = _outside(family)["output_layer.weight"].tensors
    return name


def origin_of(
    parameter: str,
    *,
    family: HuggingFaceFamily,
    layer: Callable[[int], int],
    expert: Callable[[int], int],
    tied: bool,
) -> TensorOrigin:
    """Return the tensors that a parameter is made of.

    Args:
        parameter: name in the chunk.
        family: family of the folder.
        layer: function from a layer's number in the chunk to that in the model.
        expert: function from an expert's number on this rank to that in the model.
        tied: whether the output layer is tied to the embedding.

    Raises:
        HuggingFaceError: the family has no such parameter.
    """
    if tied and parameter == "output_layer.weight":
        parameter = "embedding.word_embeddings.weight"
    outside = _outside(family)
    if parameter in outside:
        return outside[parameter]
    inside = _PARAMETER.fullmatch(
        _GROUPED.sub(r".experts.local_experts.\g<expert>.\g<linear>.\g<kind>", parameter)
    )
    for pattern, origin in family.layers.items() if inside else ():
        match = re.fullmatch(pattern, inside["rest"]) if inside else None
        if inside is not None and match is not None:
            indices = {"layer": layer(int(inside["layer"]))}
            if "expert" in match.groupdict():
                indices["expert"] = expert(int(match["expert"]))
            names = tuple(name.format(**indices) for name in origin.tensors)
            return replace(origin, tensors=names, expert=indices.get("expert", 0))
    raise HuggingFaceError(
        f"{parameter}: has no counterpart in the Hugging Face format, because a {family.model_type} has no such "
        "parameter. Merge adapters first, and train without additional heads."
    )
