"""Mapping from parameters of a Megatron GPT to tensors of a Hugging Face folder. No torch.

Megatron fuses query, key and value group by group, and concatenates gate and up projection; in both, a
tensor-parallel rank's part is the fusion of its parts of the single tensors.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mb_models.hf.errors import HuggingFaceError

Form = Literal["plain", "qkv", "glu"]
EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorOrigin:
    """Tensors that a parameter is made of, and their fusion."""

    tensors: tuple[str, ...]
    """Names in the folder, in the order of the fusion."""
    form: Form = "plain"
    split: int | None = None
    """Dimension of each tensor that tensor-parallel ranks share; None: the tensors are replicated."""


_ATTENTION = "model.layers.{layer}.self_attn."
_DENSE = "model.layers.{layer}.mlp."
_EXPERT = "model.layers.{layer}.block_sparse_moe.experts.{expert}."
_NORM_1, _NORM_2 = "model.layers.{layer}.input_layernorm.", "model.layers.{layer}.post_attention_layernorm."


def _qkv(what: str) -> TensorOrigin:
    return TensorOrigin(tensors=tuple(f"{_ATTENTION}{x}_proj.{what}" for x in "qkv"), form="qkv", split=0)


LAYER_ORIGINS: dict[str, TensorOrigin] = {
    r"input_layernorm\.weight": TensorOrigin(tensors=(_NORM_1 + "weight",)),
    r"self_attention\.linear_qkv\.layer_norm_weight": TensorOrigin(tensors=(_NORM_1 + "weight",)),
    r"self_attention\.linear_qkv\.weight": _qkv("weight"),
    r"self_attention\.linear_qkv\.bias": _qkv("bias"),
    r"self_attention\.linear_proj\.weight": TensorOrigin(tensors=(_ATTENTION + "o_proj.weight",), split=1),
    r"self_attention\.q_layernorm\.weight": TensorOrigin(tensors=(_ATTENTION + "q_norm.weight",)),
    r"self_attention\.k_layernorm\.weight": TensorOrigin(tensors=(_ATTENTION + "k_norm.weight",)),
    r"pre_mlp_layernorm\.weight": TensorOrigin(tensors=(_NORM_2 + "weight",)),
    r"mlp\.linear_fc1\.layer_norm_weight": TensorOrigin(tensors=(_NORM_2 + "weight",)),
    r"mlp\.linear_fc1\.weight": TensorOrigin(
        tensors=(_DENSE + "gate_proj.weight", _DENSE + "up_proj.weight"), form="glu", split=0
    ),
    r"mlp\.linear_fc2\.weight": TensorOrigin(tensors=(_DENSE + "down_proj.weight",), split=1),
    r"mlp\.router\.weight": TensorOrigin(tensors=("model.layers.{layer}.block_sparse_moe.gate.weight",)),
    r"mlp\.experts\.local_experts\.(?P<expert>\d+)\.linear_fc1\.weight": TensorOrigin(
        tensors=(_EXPERT + "w1.weight", _EXPERT + "w3.weight"), form="glu", split=0
    ),
    r"mlp\.experts\.local_experts\.(?P<expert>\d+)\.linear_fc2\.weight": TensorOrigin(
        tensors=(_EXPERT + "w2.weight",), split=1
    ),
}
"""Suffix of a parameter's name after `decoder.layers.N.` -> its origin."""

_LAYER = re.compile(r"decoder\.layers\.(?P<layer>\d+)\.(?P<rest>.+)")
_LAYER_ORIGINS = {re.compile(pattern): origin for pattern, origin in LAYER_ORIGINS.items()}


def origin_of(
    parameter: str, *, layer: Callable[[int], int], expert: Callable[[int], int], tied: bool
) -> TensorOrigin:
    """Return the tensors that a parameter is made of.

    Args:
        parameter: name in the chunk.
        layer: function from a layer's number in the chunk to that in the model.
        expert: function from an expert's number on this rank to that in the model.
        tied: whether the output layer is tied to the embedding.

    Raises:
        HuggingFaceError: the supported models have no such parameter.
    """
    if parameter == "embedding.word_embeddings.weight" or (tied and parameter == "output_layer.weight"):
        return TensorOrigin(tensors=(EMBEDDING,), split=0)
    if parameter == "output_layer.weight":
        return TensorOrigin(tensors=("lm_head.weight",), split=0)
    if parameter == "decoder.final_layernorm.weight":
        return TensorOrigin(tensors=("model.norm.weight",))
    inside = _LAYER.fullmatch(parameter)
    for pattern, origin in _LAYER_ORIGINS.items():
        found = pattern.fullmatch(inside["rest"]) if inside else None
        if inside is not None and found is not None:
            indices = {"layer": layer(int(inside["layer"]))}
            if "expert" in found.groupdict():
                indices["expert"] = expert(int(found["expert"]))
            names = tuple(name.format(**indices) for name in origin.tensors)
            return TensorOrigin(tensors=names, form=origin.form, split=origin.split)
    raise HuggingFaceError(
        f"{parameter}: has no counterpart in the Hugging Face format, because Llama, Qwen and Mixtral have no such "
        "parameter. Merge adapters first, and train without additional heads."
    )
