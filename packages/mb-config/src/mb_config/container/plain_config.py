"""Configurations read without the packages of their other sections, which are plain mappings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mb_config.cli.message_text import truncate_repr
from mb_config.container.codec import TARGET, ConfigReader, join
from mb_config.container.container import ConfigContainer
from mb_config.container.field_access import megatron_class_name
from mb_config.container.section_types import mapping_mismatches
from mb_config.container.yaml_file import YamlFile, read_yaml
from mb_config.errors import ConfigReadError, TargetError, WrongTypeError, raise_errors
from mb_config.megatron_defaults import megatron_fields
from mb_config.overrides.apply import apply_overrides, merge_yaml
from mb_config.overrides.base_recipe import without_base
from mb_config.overrides.provenance import Provenance
from mb_config.rules.external_fields import EXTERNAL_FIELDS
from mb_schema.value_types import hints, is_open

_ALLOWED_TARGET = re.compile(r"((megatron|mb_\w+)\.(\w+\.)*)?\w+")
_REQUIRED = ("train", "model", "optimizer", "scheduler", "dataset", "logger", "tokenizer", "checkpoint")

SECTION_PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "model": "mb-models",
        "peft": "mb-models",
        "dataset": "mb-data",
        "tokenizer": "mb-data",
        "checkpoint": "mb-checkpoint",
        "logger": "mb-metrics",
        "profiling": "mb-metrics",
        "tensor_inspect": "mb-metrics",
        "comm_overlap": "mb-overlap",
        "ft": "mb-resilience",
        "straggler": "mb-resilience",
        "nvrx_straggler": "mb-resilience",
        "inprocess_restart": "mb-resilience",
        "rerun_state_machine": "mb-resilience",
    }
)
"""Section of another package to the package with its class and rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConfig:
    """A configuration whose sections of other packages are plain mappings."""

    config: ConfigContainer
    """The configuration. Sections of this package that are not in the file have their defaults."""

    provenance: Provenance
    """Origin of each value."""

    known: tuple[str, ...]
    """Sections of this package in the file."""

    external: tuple[str, ...]
    """Sections of other packages in the file. Only rules that relate them to sections of this package are applied."""

    absent: tuple[str, ...]
    """Required sections that are not in the file."""

    suspicious_keys: tuple[str, ...]
    """Keys of the model that are similar to one of Megatron's fields, each with that field. Empty for a model whose
    class is another package's, which may have further fields.
    """

    targets: Mapping[str, str]
    """Section to the class that the file names in its `_target_`."""

    def sections(self) -> dict[str, Any]:
        """Return the sections to check."""
        return {name: getattr(self.config, name) for name in (*self.known, *self.external)}

    def unchecked(self) -> dict[str, str]:
        """Return each section whose class is not known here, with the package that has the rules on it."""
        return {
            name: _package_of(self.targets.get(name, "")) or SECTION_PACKAGES.get(name, "")
            for name in self.external
        }


def read_plain_config(
    path: str | Path, overrides: Iterable[str] = (), *, files: Iterable[str | Path] = ()
) -> PlainConfig:
    """Read a YAML file, and apply partial `files` and overrides.

    A class named by `_target_` is not imported and need not be installed. Classes of `megatron.*` and `mb_*` and bare
    names are accepted.

    Raises:
        ConfigReadError: If data could not be read; contains every error.
    """
    file, *overlays = [_read_without_targets(each) for each in (path, *files)]
    reader = ConfigReader(root=ConfigContainer, locate=file.yaml.locate)
    config = _build(file.yaml.data, reader)
    lines = (item for item in file.yaml.lines if item not in reader.hidden)
    provenance = Provenance({item: file.yaml.locate(item) for item in lines})
    for overlay in overlays:
        merge_yaml(config, overlay.yaml, provenance=provenance)
    apply_overrides(config, overrides, provenance=provenance)
    targets = {name: target for each in (file, *overlays) for name, target in each.targets.items()}
    raise_errors(_wrong_types(config, provenance))
    in_files = {item.partition(".")[0] for item in provenance.origins}
    every = [item.name for item in fields(config) if item.init and getattr(config, item.name) is not None]
    absent = [name for name in _REQUIRED if name not in in_files]
    there = [name for name in every if name not in absent]
    return PlainConfig(
        config=config,
        provenance=provenance,
        known=tuple(name for name in there if not _is_external(name)),
        external=tuple(name for name in there if _is_external(name)),
        absent=tuple(absent),
        suspicious_keys=()
        if _package_of(targets.get("model", ""))
        else tuple(_suspicious_keys(config.model)),
        targets=targets,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """File without its `_target_` keys."""

    yaml: YamlFile
    targets: Mapping[str, str]
    """Section to the class that it names."""


def _read_without_targets(path: str | Path) -> _File:
    file = without_base(read_yaml(path))
    errors: list[ConfigReadError] = []
    data = _without_targets(file.data, file.locate, errors, path="")
    raise_errors(errors)
    sections = {str(name): value for name, value in file.data.items() if isinstance(value, Mapping)}
    return _File(
        yaml=replace(file, data=data),
        targets={name: str(section[TARGET]) for name, section in sections.items() if TARGET in section},
    )


def _without_targets(
    value: Any, locate: Callable[[str], str], errors: list[ConfigReadError], *, path: str
) -> Any:
    """Return a value without its `_target_` keys. `errors` receives the classes that are not in the allow-list."""
    if isinstance(value, list):
        items = enumerate(value)
        return [_without_targets(item, locate, errors, path=f"{path}[{index}]") for index, item in items]
    if not isinstance(value, Mapping):
        return value
    here = join(path, TARGET)
    if TARGET in value and not (isinstance(value[TARGET], str) and _ALLOWED_TARGET.fullmatch(value[TARGET])):
        message = (
            f"{truncate_repr(value[TARGET])} is not allowed; allowed are classes of megatron.* and mb_*, and bare "
            "class names"
        )
        errors.append(TargetError(message, path=here, origin=locate(here)))
    return {
        key: _without_targets(item, locate, errors, path=join(path, key))
        for key, item in value.items()
        if key != TARGET
    }


def _build(data: Mapping[str, Any], reader: ConfigReader) -> ConfigContainer:
    config = reader.build(ConfigContainer, {**{name: {} for name in _REQUIRED}, **data}, path="")
    raise_errors(reader.errors)
    return config


def _package_of(target: str) -> str:
    """Return the package of a class of this family of packages, such as mb-models; empty for other classes."""
    module = target.partition(".")[0]
    return module.replace("_", "-") if module.startswith("mb_") and module != "mb_config" else ""


def _is_external(name: str) -> bool:
    return is_open(hints(ConfigContainer)[name])


def _wrong_types(config: ConfigContainer, provenance: Provenance) -> list[WrongTypeError]:
    mappings = {name: value for name, value in vars(config).items() if isinstance(value, Mapping)}
    found = (error for name, value in mappings.items() for error in mapping_mismatches(value, name=name))
    wrong = [WrongTypeError(error.value, error.expected, path=error.path) for error in found]
    wrong += _wrong_model_types(config.model, known={error.path for error in wrong})
    for error in wrong:
        error.origin = provenance.origin(error.path)
    return wrong


def _wrong_model_types(model: Any, *, known: set[str]) -> list[WrongTypeError]:
    """Return the errors for values of a mapping `model` that do not match the type of Megatron's field."""
    if not isinstance(model, Mapping):
        return []
    theirs = megatron_fields(megatron_class_name(model))
    return [
        WrongTypeError(value, " or ".join(sorted(theirs[name].kinds)), path=f"model.{name}")
        for name, value in model.items()
        if name in theirs
        and f"model.{name}" not in {*known, *EXTERNAL_FIELDS}
        and not theirs[name].accepts(value)
    ]


def _suspicious_keys(model: Any) -> Iterator[str]:
    if not isinstance(model, Mapping):
        return
    read = {path.partition(".")[2] for path in EXTERNAL_FIELDS if path.startswith("model.")}
    names = {*megatron_fields(megatron_class_name(model)), *read}
    for name in model:
        near = get_close_matches(str(name), names, n=1, cutoff=0.88)
        if name not in names and near:
            yield f"model.{name} (did you mean {near[0]}?)"
