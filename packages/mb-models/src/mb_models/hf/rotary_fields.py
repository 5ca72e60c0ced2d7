"""Conversion of rotary positions between config.json and a model section. No torch."""

import math
from collections.abc import Mapping
from typing import Any

from mb_models.config import GPTModelConfig
from mb_models.errors import HuggingFaceError
from mb_models.hf.layer_fields import FULL, WINDOW

LLAMA3_SCALING: Mapping[str, float] = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Constants of Megatron Core's `rope_scaling`; only the factor is configurable."""

BETAS: Mapping[str, float] = {"beta_fast": 32.0, "beta_slow": 1.0}
"""Boundaries of YaRN that transformers uses if they are missing."""

_PLAIN = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_YARN = frozenset(
    {"factor", "original_max_position_embeddings", "attention_factor", "mscale", "mscale_all_dim", "truncate"}
)
KNOWN: Mapping[str, frozenset[str]] = {
    "default": _PLAIN,
    "linear": _PLAIN | {"factor"},
    "llama3": _PLAIN | {"factor", *LLAMA3_SCALING},
    "yarn": _PLAIN | _YARN | set(BETAS),
}
"""Kind of scaling -> fields of the rotary embedding that are read."""


def read_rotary(content: Mapping[str, Any], *, partial: bool, latent: bool) -> dict[str, Any]:
    """Return the fields of a section from `rope_scaling` or else `rope_parameters`, and `rope_theta`.

    If both are set, transformers reads `rope_scaling`, which users add to lengthen the context.

    Args:
        content: config.json with all defaults.
        partial: whether only a part of each head may be rotated.
        latent: whether the model has latent attention, whose fields of YaRN are others.

    Raises:
        HuggingFaceError: Megatron Core computes other positions.
    """
    rotary = rotation(content)
    base = rotary.get("rope_theta", content["rope_theta"])
    kind = rotation_kind(content)
    share = rotary.get("partial_rotary_factor", content.get("partial_rotary_factor")) or 1.0
    if base != int(base) or (share != 1.0 and not partial):
        raise HuggingFaceError(
            f"config.json: rope_theta={base!r}, partial_rotary_factor={share!r} cannot be converted, because the "
            "base must be an integer, and partial rotation is not supported."
        )
    section_fields: dict[str, Any] = {"rotary_base": int(base)}
    if share != 1.0:
        section_fields["rotary_percent"] = float(share)
    scaled = _scaling(
        kind, _with_lengths(kind, rotary, longest=content["max_position_embeddings"]), latent=latent
    )
    if scaled is None:
        kinds = (
            "default and yarn" if latent else f"default, linear, yarn, and llama3 with {dict(LLAMA3_SCALING)}"
        )
        raise HuggingFaceError(
            f"config.json: the rotary embedding {rotary!r} cannot be converted, because Megatron Core supports {kinds}."
        )
    return section_fields | scaled


def _with_lengths(kind: str, rotary: Mapping[str, Any], *, longest: int) -> dict[str, Any]:
    """Return a rotary embedding with what transformers 5 derives from the model's maximum length.

    A missing original length is that maximum, and YaRN's factor is the ratio of the two where the file has null.
    """
    lengths = {"original_max_position_embeddings": longest} if kind in ("llama3", "yarn") else {}
    rotary = {**lengths, **rotary}
    original = rotary.get("original_max_position_embeddings")
    if kind == "yarn" and original and rotary.get("factor", 1.0) is None:
        rotary["factor"] = longest / original
    return rotary


def rotation(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary embedding of config.json."""
    return dict(content.get("rope_scaling") or content.get("rope_parameters") or {})


def rotation_kind(content: Mapping[str, Any]) -> Any:
    """Return the kind of its scaling."""
    rotary = rotation(content)
    return rotary.get("rope_type", rotary.get("type", "default"))


def global_rotation(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json with the rotary embedding of layers without a window in place of those by kind of layer.

    Raises:
        HuggingFaceError: that of layers without a window is missing, or has a setting that transformers ignores.
    """
    by_kind = content.get("rope_parameters") or {}
    if by_kind and FULL not in by_kind:
        raise HuggingFaceError(
            f"config.json: rope_parameters={by_kind!r} cannot be converted, because it has no entry {FULL!r}. Add it."
        )
    added = content.get("rope_scaling") or {}
    scaled = {**(by_kind.get(FULL) or {}), **added}
    ignored = [name for name in ("type",) if name in added and "rope_type" not in added]
    ignored += [name for name in ("truncate",) if not scaled.get(name, True)]
    if ignored:
        raise HuggingFaceError(
            f"config.json: {', '.join(ignored)} in {scaled!r} cannot be converted, because transformers 5 ignores it "
            "where layers with a window have a rotary embedding of their own. Write rope_type for type, and leave out "
            "truncate."
        )
    return {**content, "rope_parameters": scaled, "rope_scaling": None}


def local_rotation(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary embedding of layers with a window, as far as config.json sets it."""
    return dict((content.get("rope_parameters") or {}).get(WINDOW) or {})


def local_base(content: Mapping[str, Any]) -> int:
    """Return the rotary base of layers with a window.

    Raises:
        HuggingFaceError: these layers have scaled positions, or a base that is not an integer.
    """
    rotary = local_rotation(content)
    base = rotary.get("rope_theta", content.get("rope_local_base_freq", content["rope_theta"]))
    unsupported = {
        name: value for name, value in rotary.items() if name not in ("rope_theta", "rope_type", "type")
    }
    if unsupported or rotary.get("rope_type", "default") != "default" or base != int(base):
        raise HuggingFaceError(
            f"config.json: the rotary embedding {rotary!r} of layers with a window cannot be converted, because only "
            "an integer base is read. Remove the others."
        )
    return int(base)


def write_local_rotary(config: GPTModelConfig) -> dict[str, Any]:
    """Return the rotary embedding by kind of layer, as transformers 5 reads it, and that of layers without a window."""
    content = write_rotary(config)
    base = float(config.rotary_base if config.rotary_base_local is None else config.rotary_base_local)
    by_kind = {FULL: content["rope_parameters"], WINDOW: {"rope_type": "default", "rope_theta": base}}
    return {**content, "rope_parameters": by_kind}


def _scaling(kind: str, rotary: Mapping[str, Any], *, latent: bool) -> dict[str, Any] | None:
    """Return the fields of the scaling, or None if Megatron Core computes other positions."""
    if not {name for name, value in rotary.items() if value is not None} <= KNOWN.get(kind, frozenset()):
        return None
    if kind == "default":
        return {"rope_type": "rope"} if latent else {}
    if rotary.get("factor") is None or (latent and kind != "yarn"):
        return None
    factor = float(rotary["factor"])
    if kind == "linear":
        return {"seq_len_interpolation_factor": factor}
    if kind == "llama3":
        fits = all(rotary.get(key) == value for key, value in LLAMA3_SCALING.items())
        return {"rope_scaling": True, "rope_scaling_factor": factor} if fits else None
    return _yarn(rotary, factor=factor, latent=latent)


def _yarn(rotary: Mapping[str, Any], *, factor: float, latent: bool) -> dict[str, Any] | None:
    """Return the fields of YaRN; the correction of the scores is the ratio of two logarithms in both libraries."""
    original, rounds = rotary.get("original_max_position_embeddings"), rotary.get("truncate", True)
    if original is None or (latent and not rounds):
        return None
    mscale, all_dim = rotary.get("mscale") or 0.0, rotary.get("mscale_all_dim") or 0.0
    if all_dim and not mscale and latent:
        return None
    if not (mscale and all_dim):  # transformers then uses the factor alone
        mscale, all_dim = 1.0, 0.0
    attention_factor = rotary.get("attention_factor")
    if attention_factor is not None and not math.isclose(
        attention_factor, correction(factor, mscale) / correction(factor, all_dim), rel_tol=1e-6
    ):
        return None
    values = {
        "rotary_scaling_factor": factor,
        "original_max_position_embeddings": int(original),
        **{name: float(rotary.get(name) or value) for name, value in BETAS.items()},
        "mscale": float(mscale),
        "mscale_all_dim": float(all_dim),
    }
    if latent:
        return {"rope_type": "yarn", **values}
    named = {f"yarn_{name}": value for name, value in values.items()}
    return {
        "position_embedding_type": "yarn",
        **named,
        "yarn_correction_range_round_to_int": bool(rounds),
    }


def correction(factor: float, strength: float) -> float:
    """Return YaRN's correction of the attention scores, of one strength."""
    return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0


def write_rotary(config: GPTModelConfig) -> dict[str, Any]:
    """Return the rotary embedding in both spellings: transformers 5 reads the first, earlier versions the others."""
    rotary: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling:
        rotary = {"rope_type": "llama3", "factor": config.rope_scaling_factor, **LLAMA3_SCALING}
    elif config.seq_len_interpolation_factor is not None:
        rotary = {"rope_type": "linear", "factor": config.seq_len_interpolation_factor}
    elif config.multi_latent_attention and config.rope_type == "yarn":
        rotary = _written_yarn(config, prefix="", rounds=True)
    elif config.position_embedding_type == "yarn" and not config.multi_latent_attention:
        rotary = _written_yarn(config, prefix="yarn_", rounds=config.yarn_correction_range_round_to_int)
    base = {"rope_theta": float(config.rotary_base)}
    share = {} if config.rotary_percent == 1.0 else {"partial_rotary_factor": config.rotary_percent}
    return {
        "rope_parameters": {**base, **rotary, **share},
        **base,
        **share,
        "rope_scaling": None if rotary["rope_type"] == "default" else rotary,
    }


def _written_yarn(config: GPTModelConfig, *, prefix: str, rounds: bool) -> dict[str, Any]:
    def get(name: str) -> Any:
        return getattr(config, prefix + name)

    strengths = {name: get(name) for name in ("mscale", "mscale_all_dim") if get("mscale_all_dim")}
    return {
        "rope_type": "yarn",
        "factor": get("rotary_scaling_factor"),
        "original_max_position_embeddings": get("original_max_position_embeddings"),
        **{name: get(name) for name in BETAS},
        **strengths,
        **({} if rounds else {"truncate": False}),
    }
