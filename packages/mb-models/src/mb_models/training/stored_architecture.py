"""The architecture in the settings of a checkpoint, taken into the model section of a run. No torch."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from mb_models.config import ParallelFields
from mb_models.errors import ModelsError
from mb_models.hf.adoption import OF_THE_RUN, AdoptedArchitecture, OriginsLike
from mb_models.hybrid.config import MambaModelConfig
from mb_models.training.weight_shapes import SHAPE_FIELDS

_PARALLEL = frozenset(item.name for item in fields(ParallelFields))
_EMBEDDING = frozenset({"make_vocab_size_divisible_by"})
_MEGATRON_ARCHITECTURE = (
    "mamba_",
    "linear_",
    "dsa_",
    "moe_latent_size",
    "no_rope_freq",
    "mrope_section",
    "glu_",
)
"""Beginnings of the names in `model.transformer` that belong to the weights."""


class StoredArchitectureError(ModelsError, ValueError):
    """Settings of the user that exclude loading the weights of the checkpoint."""


def adopt_stored_architecture(
    section: Any, stored: Mapping[str, Any], *, origins: OriginsLike, source: str, parallel: bool = False
) -> AdoptedArchitecture:
    """Return the model section with the architecture of a checkpoint.

    Layout, precision, kernels and `seq_length` are kept, and so is each field that the user has set. A conflict is such
    a field whose value differs from the stored one.

    Args:
        section: section of the run; not modified.
        stored: values by field, as the settings in the checkpoint have them; unknown names are ignored.
        origins: origins of the values.
        source: the checkpoint, for messages.
        parallel: take the parallel layout as well.

    Raises:
        StoredArchitectureError: the checkpoint is of another kind of model, or the user has set fields with which its
            weights cannot be loaded. The message names all of them.
    """
    _reject_other_kind(section, stored, source=source)
    adopted_names = {item.name for item in fields(section)} - (OF_THE_RUN - _EMBEDDING) | {"transformer"}
    if parallel:
        adopted_names |= _PARALLEL
    stored_values = {
        name: value for name, value in stored.items() if name in adopted_names and name != "transformer"
    }
    conflicts = {
        f"model.{name}": (getattr(section, name), value)
        for name, value in stored_values.items()
        if origins.by_user(f"model.{name}") and getattr(section, name) != value
    }
    fixed = [path for path in conflicts if path.partition(".")[2] in SHAPE_FIELDS]
    if fixed:
        listed = ", ".join(f"{path} is {conflicts[path][0]} and {conflicts[path][1]} there" for path in fixed)
        raise StoredArchitectureError(
            f"checkpoint.use_checkpoint_args: {listed}, and the weights of {source} fit only its values. Omit them, or "
            "set checkpoint.use_checkpoint_args=false and load another checkpoint."
        )
    adopted = {name: value for name, value in stored_values.items() if not origins.by_user(f"model.{name}")}
    result = replace(section, **adopted, transformer=_transformer(section, stored, origins))
    lines = [
        f"{path}: {user_value} was set and applies; the checkpoint has {stored_value}"
        for path, (user_value, stored_value) in conflicts.items()
    ]
    changed = [name for name in adopted if getattr(result, name) != getattr(section, name)]
    return AdoptedArchitecture(section=result, fields=changed, conflicts=lines)


def _transformer(section: Any, stored: Mapping[str, Any], origins: OriginsLike) -> dict[str, Any]:
    """Return Megatron's further fields, with those of the checkpoint that belong to the weights."""
    stored_transformer = {
        name: value
        for name, value in (stored.get("transformer") or {}).items()
        if name.startswith(_MEGATRON_ARCHITECTURE) and not origins.by_user(f"model.transformer.{name}")
    }
    return {**(section.transformer or {}), **stored_transformer}


def _reject_other_kind(section: Any, stored: Mapping[str, Any], *, source: str) -> None:
    kind, name = type(section).__name__, str(stored.get("_target_", "")).rpartition(".")[2]
    if name.endswith("ModelConfig"):
        stored_kind = MambaModelConfig.__name__ if name == "HybridModelConfig" else name
    else:
        stored_kind = MambaModelConfig.__name__ if stored.get("hybrid_layer_pattern") else kind
    if stored_kind != kind:
        raise StoredArchitectureError(
            f"checkpoint.use_checkpoint_args: {source} holds a {stored_kind}, and the model section is a {kind}. "
            f"Choose a recipe of that kind, or set model._target_={stored_kind}."
        )
