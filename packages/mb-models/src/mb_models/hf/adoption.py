"""The architecture of a Hugging Face folder in the model section of a run that starts from its weights. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from mb_models.config import KernelFields, OverlapFields, ParallelFields, PrecisionFields
from mb_models.errors import HuggingFaceError
from mb_models.hf.config_json import CONVERTIBLE, read_config, section_of, with_padded_vocabulary

OF_THE_RUN = frozenset(
    {
        *(
            item.name
            for kind in (ParallelFields, PrecisionFields, OverlapFields, KernelFields)
            for item in fields(kind)
        ),
        "seq_length",
        "parallel_output",
        "perform_initialization",
        "use_cpu_initialization",
        "make_vocab_size_divisible_by",
    }
)
"""Fields that belong to the run, not to the weights: layout, precision, kernels, and length of the sequences."""


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder holds a model in the Hugging Face format: its config.json, and *.safetensors."""
    return (folder / "config.json").is_file() and next(folder.glob("*.safetensors"), None) is not None


class OriginsLike(Protocol):
    """Origins of the values of a configuration; `mb_config.Provenance` matches."""

    def by_user(self, path: str) -> bool:
        """Return whether the user has set a value, such as "model.num_layers"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedArchitecture:
    """Model section with the architecture of weights."""

    section: Any
    fields: Sequence[str] = ()
    """Fields whose values come from the weights."""
    conflicts: Sequence[str] = ()
    """A line for each field of the user that differs from the weights."""


def adopt_architecture(section: Any, weights: str | None, *, origins: OriginsLike) -> AdoptedArchitecture:
    """Return the model section with the architecture of the initial weights, if these are a Hugging Face folder.

    Layout, precision, kernels and `seq_length` are kept, and so is each field that the user has set. The embedding is
    padded as in the conversion of the folder.

    Args:
        section: section of a GPT or of a hybrid model; not modified.
        weights: value of `checkpoint.pretrained_checkpoint`.
        origins: origins of the values.

    Raises:
        HuggingFaceError: Megatron would compute a different result, or the section is that of another kind of model.
    """
    if weights is None or not is_model_folder(Path(weights)):
        return AdoptedArchitecture(section=section)
    folder = Path(weights)
    stored = section_of(read_config(folder), dtype="float32")
    if not issubclass(type(section), CONVERTIBLE) or hasattr(section, "model_family"):
        raise HuggingFaceError(
            f"model: is a {type(section).__name__}, and {folder} holds a model for a {type(stored).__name__}, because "
            "the recipe trains another kind of model. Choose a recipe of a language model, such as sft_tiny."
        )
    adopted = with_padded_vocabulary(stored)
    names = {item.name for item in fields(section)}
    kept_fields = {
        item.name: getattr(section, item.name)
        for item in fields(adopted)
        if item.name in names and (item.name in OF_THE_RUN or origins.by_user(f"model.{item.name}"))
    }
    further = {
        name: value
        for name, value in section.transformer.items()
        if any(origins.by_user(path) for path in ("model.transformer", f"model.transformer.{name}"))
    }
    kept_fields["transformer"] = {**adopted.transformer, **further}
    if isinstance(section, type(adopted)):  # a subclass keeps its own fields
        values = {item.name: getattr(adopted, item.name) for item in fields(adopted)}
        adopted = replace(section, **{**values, **kept_fields})
    else:
        adopted = replace(adopted, **kept_fields)
    changed = [
        item.name
        for item in fields(adopted)
        if item.name not in names or getattr(adopted, item.name) != getattr(section, item.name)
    ]
    return AdoptedArchitecture(section=adopted, fields=changed)
