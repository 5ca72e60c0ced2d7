"""Read a configuration without the packages that own its other sections: those stay plain mappings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mb_config.codec import TARGET, Reader, join
from mb_config.container import ConfigContainer
from mb_config.errors import ConfigReadError, raise_all
from mb_config.field_types import fit, hints, is_open
from mb_config.overrides import apply_overrides
from mb_config.provenance import Provenance
from mb_config.rules.foreign import FOREIGN
from mb_config.yaml_file import YamlFile, read_yaml

_REQUIRED = ("train", "model", "optimizer", "scheduler", "dataset", "logger", "tokenizer", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConfig:
    """A configuration as far as this package knows it."""

    config: ConfigContainer
    """Sections of other packages are mappings; a section of ours that the file lacks has its defaults."""

    provenance: Provenance
    """Where each value came from."""

    known: tuple[str, ...]
    """Sections of ours that are there."""

    foreign: tuple[str, ...]
    """Sections of other packages that are there: read by the shared rules only."""

    absent: tuple[str, ...]
    """Sections that a run needs and that are not there."""

    def sections(self) -> dict[str, Any]:
        """What there is to check."""
        return {name: getattr(self.config, name) for name in (*self.known, *self.foreign)}


def read_plain(path: str | Path, overrides: Iterable[str] = ()) -> PlainConfig:
    """Read a YAML file and apply overrides. A class named by `_target_` is neither imported nor needed.

    Raises:
        ConfigReadError: everything that could not be read.
    """
    file = read_yaml(path)
    provenance = Provenance({item: file.locate(item) for item in file.lines})
    config = _build(file)
    apply_overrides(config, overrides, provenance=provenance)
    raise_all(_wrong_types(config, provenance))
    written = {item.partition(".")[0] for item in provenance.origins}
    every = [item.name for item in fields(config) if item.init and getattr(config, item.name) is not None]
    absent = [name for name in _REQUIRED if name not in written]
    there = [name for name in every if name not in absent]
    return PlainConfig(
        config=config,
        provenance=provenance,
        known=tuple(name for name in there if not _is_foreign(name)),
        foreign=tuple(name for name in there if _is_foreign(name)),
        absent=tuple(absent),
    )


def _build(file: YamlFile) -> ConfigContainer:
    data = {key: _without_targets(value) for key, value in file.data.items()}
    for name in _REQUIRED:
        data.setdefault(name, {})
    reader = Reader(root=ConfigContainer, locate=file.locate)
    config = reader.build(ConfigContainer, data, path="")
    raise_all(reader.errors)
    return config


def _is_foreign(name: str) -> bool:
    return is_open(hints(ConfigContainer)[name])


def _without_targets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_targets(item) for key, item in value.items() if key != TARGET}
    return [_without_targets(item) for item in value] if isinstance(value, list) else value


def _wrong_types(config: ConfigContainer, provenance: Provenance) -> list[ConfigReadError]:
    wrong = []
    for path, annotation in FOREIGN.items():
        name, _, leaf = path.partition(".")
        section = getattr(config, name)
        try:
            if isinstance(section, Mapping) and leaf in section:
                fit(section[leaf], annotation, path=join(name, leaf))
        except ConfigReadError as error:
            error.origin = provenance.origin(path)
            wrong.append(error)
    return wrong
