"""Sections of the settings in a checkpoint: of this project, of Megatron-Bridge, or arguments of Megatron-LM."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mb_config.container.yaml_file import read_yaml
from mb_config.megatron_lm.conversion import convert, section_defaults
from mb_config.megatron_lm.flag_table import read_flags
from mb_config.overrides.provenance import Provenance

_PADDED = "padded_vocab_size"
_TOKENIZER = (
    "tokenizer_type",
    "tokenizer_model",
    "vocab_size",
    "vocab_file",
    "merge_file",
    "vocab_extra_ids",
)
"""Fields of the tokenizer that name its kind, its files and its entries."""


def stored_sections(file: Path | None, arguments: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return the sections of a run_config.yaml, or else those of arguments; errors as the functions for each."""
    return sections_of_arguments(arguments or {}) if file is None else sections_of_file(file)


def stored_tokenizer(section: Any, stored: Mapping[str, Any], *, origins: Provenance) -> dict[str, Any]:
    """Return the settings of the tokenizer of a checkpoint that the section takes.

    There are none if the checkpoint names no tokenizer, or if the user has set a field of the section.
    """
    by_user = any(origins.by_user(f"tokenizer.{name}") for name in vars(section))
    if by_user or not stored.get("tokenizer_type"):
        return {}
    return {name: stored[name] for name in stored.keys() & vars(section).keys()}


def sections_of_file(file: Path) -> dict[str, dict[str, Any]]:
    """Return the sections `model` and `tokenizer` of a run_config.yaml.

    Megatron-Bridge stores functions and types of torch as mappings with a `_target_`: a function is returned by its
    name, such as "silu"; fields with other objects are left out. Nothing is imported.

    Raises:
        ConfigFileError: The file cannot be read, or is not YAML.
    """
    data = read_yaml(file).data
    found = {name: _plain(data.get(name) or {}) for name in ("model", "tokenizer")}
    return {**found, "tokenizer": _of_tokenizer(found["tokenizer"])}


def _of_tokenizer(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: section[name] for name in _TOKENIZER if section.get(name) is not None}


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for name, value in section.items():
        if not isinstance(value, Mapping) or name == "transformer":
            plain[name] = value
        elif name == "activation_func" and "_target_" in value:
            plain[name] = str(value["_target_"]).rpartition(".")[2]
    return plain


def sections_of_arguments(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sections `model` and `tokenizer` that follow from the arguments in a checkpoint of Megatron-LM.

    Raises:
        MegatronFlagError: The arguments describe a model without a counterpart.
    """
    flags = read_flags()
    given = {name: value for name, value in arguments.items() if name in flags}
    if not given.get("data_path"):
        given["mock_data"] = True  # the data is not part of the result, and required by the conversion
    conversion = convert(given)
    values = {**section_defaults(), **conversion.defaults, **conversion.given}
    sections: dict[str, dict[str, Any]] = {"model": {}, "tokenizer": {}}
    for path, value in values.items():
        name, _, field = path.partition(".")
        if name in sections:
            section = sections[name]
            if field.startswith("transformer."):
                section, field = section.setdefault("transformer", {}), field.partition(".")[2]
            section[field] = value
    if arguments.get(_PADDED) is not None:
        sections["model"]["vocab_size"] = arguments[_PADDED]
    return {**sections, "tokenizer": _of_tokenizer(sections["tokenizer"])}
