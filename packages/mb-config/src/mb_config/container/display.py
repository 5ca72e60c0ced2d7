"""Configuration as YAML text, optionally with the origin of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from mb_config.container.codec import TARGET, join, to_dict
from mb_config.container.section import field_default
from mb_config.container.yaml_file import dump_value
from mb_config.overrides.provenance import Provenance


def show(
    config: Any,
    provenance: Provenance | None = None,
    *,
    origin: bool = False,
    defaults: bool = True,
    section: str | None = None,
) -> str:
    """Return the configuration as YAML text that can be loaded again. Secrets are masked.

    Values computed by resolving are appended as comments.

    Args:
        config: A dataclass of sections.
        provenance: Origins of the values; None: what the sections themselves record.
        origin: Append the origin of each value as a comment.
        defaults: Include values that are equal to the defaults of their class.
        section: Name of the only section to print; None: all.
    """
    known = Provenance.of(config) if provenance is None else provenance
    data = to_dict(config)
    if not defaults:
        data = _without_defaults(data, config)
    if section is not None:
        data = {name: value for name, value in data.items() if name == section}
    rows = list(_rows(data, path="", depth=0))
    width = min(60, max((len(text) for text, path in rows if path), default=0))
    lines = [
        f"{text:<{width}}  # {_origin(known, path)}" if origin and path is not None else text
        for text, path in rows
    ]
    computed = _computed(config, known, origin=origin)
    shown = (line for line in computed if section is None or line.startswith(f"# {section}."))
    return "".join(f"{line}\n" for line in (*lines, *shown))


def _origin(known: Provenance, path: str) -> str:
    """Return the origin of a line; that of the class of a section is the origin of the section."""
    section, _, name = path.rpartition(".")
    return known.origin(section if name == TARGET and path not in known.origins else path)


def _without_defaults(data: Mapping[str, Any], section: Any) -> dict[str, Any]:
    """Return the data without fields that are equal to their default. A mapping has no defaults."""
    items = {item.name: item for item in fields(section)}
    kept = {}
    for key, value in data.items():
        item = items.get(key)
        current = value if item is None else getattr(section, key)
        if item is not None and current == field_default(item):
            continue
        nested = is_dataclass(current) and isinstance(value, Mapping)
        kept[key] = _without_defaults(value, current) if nested else value
    return kept


def _rows(data: Mapping[str, Any], *, path: str, depth: int) -> Iterator[tuple[str, str | None]]:
    """Yield lines, each with the path of its value, or None for the first line of a section."""
    indent = "  " * depth
    for key, value in data.items():
        here = join(path, key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{dump_value(key)}:", None
            yield from _rows(value, path=here, depth=depth + 1)
        else:
            yield f"{indent}{dump_value(key)}: {dump_value(value)}", here


def _computed(config: Any, known: Provenance, *, origin: bool, path: str = "") -> Iterator[str]:
    """Yield the fields that no file sets and that have a value."""
    for item in fields(config):
        value, here = getattr(config, item.name), join(path, item.name)
        if not item.init and value is not None:
            yield f"# {here}: {dump_value(value)}" + (f"  # {known.origin(here)}" if origin else "")
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _computed(value, known, origin=origin, path=here)
