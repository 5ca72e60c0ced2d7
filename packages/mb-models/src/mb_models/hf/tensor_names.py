"""Mapping from parameters of a Megatron GPT to tensors of a Hugging Face folder. No torch."""

import re
from collections.abc import Callable
from dataclasses import replace

from mb_models.errors import HuggingFaceError
from mb_models.hf.family import HuggingFaceFamily, TensorOrigin
from mb_models.hf.weight_tables import OUTSIDE

_LAYER = re.compile(r"decoder\.layers\.(?P<layer>\d+)\.(?P<rest>.+)")


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
    outside = (family.outside or OUTSIDE) if family.hybrid is None else family.hybrid.outside
    if parameter in outside:
        return outside[parameter]
    inside = _LAYER.fullmatch(parameter)
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
