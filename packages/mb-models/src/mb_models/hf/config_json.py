"""Conversion between config.json and a model section, for the families of `mb_models.hf.families`. No torch.

Settings that Megatron would compute differently from transformers are rejected, never dropped.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mb_models.config import DType, GPTModelConfig
from mb_models.errors import HuggingFaceError, HuggingFaceFolderError
from mb_models.hf.families import FAMILIES
from mb_models.hf.family import (
    COMMON_DEFAULTS,
    COMMON_FIELDS,
    REQUIRED,
    ROTARY_FIELDS,
    WITHOUT_EFFECT,
    HuggingFaceFamily,
    Section,
    settings_of_weights,
)
from mb_models.hf.rotary_fields import LLAMA3_SCALING, global_rotation, read_rotary, write_rotary
from mb_models.hf.section_fields import differences, with_sizes
from mb_models.hf.text_part import text_config
from mb_models.hybrid.config import MambaModelConfig
from mb_models.training.vocab import padded_vocab_size
from mb_schema.value_types import reject_wrong_types

_OUTPUT_BIAS = "Megatron Core's output layer has no bias"

UNSUPPORTED: Mapping[str, str] = {
    "bamba": "a layer of it is two of a pattern, whose names of weights are not implemented",
    "zamba2": "Megatron Core has no layers that share weights",
    "falcon_h1": "Megatron Core has no layers with attention and Mamba in parallel",
    "llama4": "Megatron Core has no chunked attention, and no scaling of queries by their position",
    "phi": _OUTPUT_BIAS,
    "gptj": _OUTPUT_BIAS,
    "falcon": "its layouts of queries, keys and values, and its biases by layer, are not implemented",
}
"""model_type of config.json -> what Megatron Core, or this package, does not compute."""


__all__ = [
    "ARCHITECTURES",
    "CONVERTIBLE",
    "LLAMA3_SCALING",
    "REQUIRED",
    "architecture_of",
    "config_of",
    "family_of_section",
    "padded_rows",
    "read_config",
    "same_family",
    "section_of",
    "unequal_parts",
    "with_padded_vocabulary",
]

ARCHITECTURES: Mapping[str, str] = {name: family.architecture for name, family in FAMILIES.items()}
"""model_type of config.json -> its architecture class."""

CONVERTIBLE: tuple[type, ...] = (GPTModelConfig, MambaModelConfig)
"""Sections whose models can be converted."""

LARGEST_NUMBER, MOST_LAYERS = 2**31, 10_000

MUST_BE: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
    "layer_types": (None,),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
}
"""Fields with their convertible values in families that do not read them; a missing field is None."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json; that of the text part of a model with an image encoder (`mb_models.hf.text_part`).

    Raises:
        HuggingFaceFolderError: it is missing, or is not JSON.
        HuggingFaceError: it is not a JSON object, or its model_type is none of `ARCHITECTURES`.
    """
    path = folder / "config.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise HuggingFaceFolderError(
            f"{path}: does not exist, because {folder} is not a folder of a Hugging Face model. Pass one that holds "
            "config.json and *.safetensors."
        ) from error
    except (ValueError, RecursionError) as error:  # also of other encodings, and of absurd numbers and depths
        raise HuggingFaceFolderError(f"{path}: is not JSON ({error}). Download the file again.") from error
    return architecture_of(content, source=str(path))


def architecture_of(content: object, *, source: str) -> dict[str, Any]:
    """Return the content of a config.json; that of the text part of a model with an image encoder.

    Raises:
        HuggingFaceError: it is not a JSON object, or its model_type is none of `ARCHITECTURES`.
    """
    content = text_config(content) if isinstance(content, dict) else {}
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        reason = UNSUPPORTED.get(kind) if isinstance(kind, str) else None
        raise HuggingFaceError(
            f"{source}: model_type is {kind!r}, and only {', '.join(ARCHITECTURES)} can be converted"
            + (f", because {reason}." if reason else ".")
        )
    return content


def section_of(content: Mapping[str, Any], *, dtype: DType, exact: bool = True) -> Section:
    """Return the model section of a config.json; `dtype` is that of the weights.

    Dropout is that of transformers; seq_length is the model's maximum, which the caller may reduce.

    Args:
        content: The file, with a model_type of `ARCHITECTURES`.
        dtype: Floating-point type of the weights.
        exact: Reject a model that Megatron Core computes differently with the same weights (`unequal_parts`); false for
            one that is trained from random weights.

    Raises:
        HuggingFaceError: fields of `REQUIRED` are missing, or fields have values that Megatron Core would compute
            differently; lists all fields of either kind. Or a value is none of a model.
    """
    try:
        section = _section_of(content, dtype=dtype, exact=exact)
        reject_wrong_types(section, path="model")
        return section
    except HuggingFaceError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise HuggingFaceError(
            f"config.json: has values that make no model ({type(error).__name__}: {error}). Download the file again."
        ) from error


def unequal_parts(content: Mapping[str, Any]) -> Sequence[str]:
    """Return what Megatron Core computes differently from transformers with the same weights."""
    family = FAMILIES[content["model_type"]]
    return family.unequal(_complete(content, family))


def _section_of(content: Mapping[str, Any], *, dtype: DType, exact: bool) -> Section:
    family = FAMILIES[content["model_type"]]
    content = _complete(content, family)
    unequal = family.unequal(content) if exact else ()
    if unequal:
        raise HuggingFaceError(
            f"config.json: {', '.join(unequal)} cannot be converted, because the model would compute different results."
        )
    if family.hybrid is not None:
        return family.hybrid.read(content, dtype)
    values = {
        **{name: content[key] for key, name in COMMON_FIELDS.items()},
        "num_query_groups": content["num_key_value_heads"] or content["num_attention_heads"],
        "kv_channels": content["head_dim"] or content["hidden_size"] // content["num_attention_heads"],
        "seq_length": content["max_position_embeddings"],
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": "silu",
        **settings_of_weights(dtype),
        **family.section,
        **family.read(content),
    }
    rotary = read_rotary(
        global_rotation(content) if family.local_rotation else content,
        partial=family.partial_rotation,
        latent="multi_latent_attention" in family.section,
    )
    return GPTModelConfig(**values | rotary)


def with_padded_vocabulary(section: Section) -> Section:
    """Return the section with the rows of the embedding rounded up to a multiple of 128, which ranks can share.

    The further rows are zero, and their logits of 0 would be a part of every probability: they are excluded.
    """
    tokens = section.vocab_size or 1
    rows = padded_rows(tokens)
    return replace(section, vocab_size=rows, unpadded_vocab_size=tokens if rows > tokens else None)


def padded_rows(tokens: int) -> int:
    """Return the rows of an imported embedding."""
    return padded_vocab_size(tokens, divisible_by=128, tensor_parallel_size=1)


def _complete(content: Mapping[str, Any], family: HuggingFaceFamily) -> dict[str, Any]:
    """Return a config.json with the values of missing fields, if Megatron can compute the same results."""
    hybrid = family.hybrid
    required = REQUIRED if hybrid is None else hybrid.required
    missing = [key for key in required if key not in content]
    if missing:
        raise HuggingFaceError(
            f"config.json: lacks {', '.join(missing)}, because the shapes of the weights are unknown without them. "
            "Download the file again."
        )
    usual = {**COMMON_DEFAULTS, **family.defaults}
    contradicting = [
        f"{key}={content[key]!r}, {alias}={content.get(alias, usual.get(key))!r}"
        for alias, key in family.aliases.items()
        if content.get(key) is not None
        and (alias in content or key in family.unread)
        and content[key] != content.get(alias, usual.get(key))
    ]
    if contradicting:
        raise HuggingFaceError(
            f"config.json: {', '.join(contradicting)} contradict each other, because they are one field, of which "
            "transformers reads one spelling. Remove the wrong one."
        )
    content = {family.aliases.get(key, key): value for key, value in content.items()}

    def is_possible(key: str, number: int) -> bool:
        least = 1 if key in required else -LARGEST_NUMBER
        most = MOST_LAYERS if key == "num_hidden_layers" else LARGEST_NUMBER
        return least <= number <= most

    absurd = [
        f"{key}={value}"
        for key, value in content.items()
        if isinstance(value, int) and not is_possible(key, value)
    ]
    if absurd:
        raise HuggingFaceError(
            f"config.json: {', '.join(absurd)} cannot be converted, because no model has this size. Download the file "
            "again."
        )
    content = {**(COMMON_DEFAULTS if hybrid is None else {}), **family.defaults, **content}
    general = MUST_BE if hybrid is None else {}
    must_be = {key: fine for key, fine in general.items() if key not in family.defaults} | dict(
        family.must_be
    )
    wrong = [f"{key}={content[key]!r}" for key, fine in must_be.items() if content.get(key) not in fine]
    if wrong:
        raise HuggingFaceError(
            f"config.json: {', '.join(wrong)} cannot be converted, because the model would compute different results."
        )
    common = {*COMMON_FIELDS, *COMMON_DEFAULTS, *ROTARY_FIELDS} if hybrid is None else {*hybrid.required}
    accepted = {*common, *WITHOUT_EFFECT, *family.defaults, *must_be}
    unknown = [
        f"{key}={value!r}"
        for key, value in content.items()
        if value is not None and key not in accepted and not key.startswith("_")
    ]
    if unknown:
        raise HuggingFaceError(
            f"config.json: {', '.join(unknown)}: unknown fields of a {family.model_type}, because they may change what "
            "the model computes. Remove those that do not."
        )
    return content


def config_of(
    config: Section, *, vocab_size: int, dtype: str, model_type: str | None = None
) -> dict[str, Any]:
    """Return the config.json of a model section.

    Args:
        config: section of the model.
        vocab_size: rows of the embedding.
        dtype: floating-point type of the weights, by name.
        model_type: family of `ARCHITECTURES`; None: the first that computes the same as the section.

    Raises:
        HuggingFaceError: no family computes the same, or not the requested one; lists the fields of the section that
            differ from the most similar family.
    """
    if model_type is not None and model_type not in FAMILIES:
        raise HuggingFaceError(f"model_type: {model_type!r} is unknown. Use one of {', '.join(FAMILIES)}.")
    named = FAMILIES.values() if model_type is None else [FAMILIES[model_type]]
    tried = [family for family in named if isinstance(config, family.kind)]
    if not tried:
        raise HuggingFaceError(
            f"model_type: {model_type!r} is not the family of a {type(config).__name__}, because its layers are of "
            "other kinds. Choose another."
        )
    problems: list[list[str]] = []
    for family in tried:
        content = _written(config, family, vocab_size=vocab_size, dtype=dtype)
        try:
            wrong = differences(config, section_of(content, dtype="float32"))
        except HuggingFaceError as error:
            if model_type is not None:
                raise
            wrong = [f"{family.model_type}: {error}"] * len(content)  # the least similar family
        if not wrong:
            return content
        problems.append(wrong)
    names = ", ".join(family.model_type for family in tried)
    fewest = min(problems, key=len)
    raise HuggingFaceError(
        f"{', '.join(fewest)}: cannot be exported, because no model of {names} computes the same."
    )


def family_of_section(config: Section, *, model_type: str | None = None) -> HuggingFaceFamily:
    """Return the family as which a section is exported; the arguments and errors are those of `config_of`."""
    content = config_of(config, vocab_size=config.vocab_size or 1, dtype="float32", model_type=model_type)
    return FAMILIES[content["model_type"]]


def same_family(config: Section, model_type: object) -> str | None:
    """Return the family of an imported model if it still computes the same as the section; None if it does not."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        return None
    try:
        family_of_section(config, model_type=model_type)
    except HuggingFaceError:
        return None
    return model_type


def _written(config: Any, family: HuggingFaceFamily, *, vocab_size: int, dtype: str) -> dict[str, Any]:
    """Return the config.json of a section as if a family computed the same."""
    names = {"architectures": [family.architecture], "model_type": family.model_type}
    types = {"vocab_size": vocab_size, "dtype": dtype, "torch_dtype": dtype}
    config = with_sizes(config)
    if family.hybrid is not None:
        return {**names, **family.hybrid.write(config), **types}
    return {
        **names,
        **{key: getattr(config, name) for key, name in COMMON_FIELDS.items()},
        "hidden_act": "silu",
        **write_rotary(config),
        **types,
        **family.write(config),
    }
