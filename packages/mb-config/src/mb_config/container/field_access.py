"""Access to the fields of sections that are objects or plain mappings.

A model section that is read without its package is a plain mapping with Megatron's field names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from mb_config.container.section import assign_computed, field_default
from mb_config.megatron_defaults import megatron_defaults
from mb_schema.paths import expand_home

UNKNOWN = object()


def has_field(config: Any, path: str) -> bool:
    """Return True if the section has the field. A `model` that is a mapping has all fields of Megatron's class."""
    section, name = _split(config, path)
    if isinstance(section, Mapping):
        return name in section or name in _megatron_defaults(section, path)
    return hasattr(section, name)


def get_field(config: Any, path: str) -> Any:
    """Return the value at `section.field`, of a `model` that is a mapping also the default of Megatron's class.

    None: there is no such field or section.
    """
    section, name = _split(config, path)
    if not isinstance(section, Mapping):
        return getattr(section, name, None)
    return section[name] if name in section else _megatron_defaults(section, path).get(name)


def set_field(config: Any, path: str, value: object) -> None:
    """Set a computed value. It does not count as set by the user."""
    section, name = _split(config, path)
    if isinstance(section, dict):
        section[name] = value
    else:
        assign_computed(section, name, value)


def default_of(config: Any, path: str) -> Any:
    """Return the default of a field, MISSING if it has none, or `UNKNOWN` if it cannot be determined."""
    section, name = _split(config, path)
    if isinstance(section, Mapping):
        return _megatron_defaults(section, path).get(name, UNKNOWN)
    item = (
        next((item for item in fields(section) if item.name == name), None) if is_dataclass(section) else None
    )
    if item is None:
        return UNKNOWN
    return field_default(item)


def field_values(section: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field of an object or a mapping."""
    if isinstance(section, Mapping):
        yield from section.items()
    elif is_dataclass(section):
        yield from ((item.name, getattr(section, item.name)) for item in fields(section))
    else:
        yield from vars(section).items()


def megatron_class_name(model: Any) -> str:
    """Return the name of Megatron's class for a model section."""
    latent = dict(field_values(model)).get("multi_latent_attention")
    return "MLATransformerConfig" if latent else "TransformerConfig"


def _split(config: Any, path: str) -> tuple[Any, str]:
    section, _, name = path.partition(".")
    return getattr(config, section, None), name


def _megatron_defaults(section: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    return megatron_defaults(megatron_class_name(section)) if path.startswith("model.") else {}


def expand_home_in(config: Any, fields: Iterable[str]) -> None:
    """Replace a leading `~` by the home directory in the given fields of a configuration, in place.

    The origin of a field does not change. Sections and fields that are absent are skipped.

    Args:
        config: A container of sections.
        fields: Paths, such as `checkpoint.save`.
    """
    for path in fields:
        name, _, leaf = path.partition(".")
        section = getattr(config, name, None)
        given = getattr(section, leaf, None)
        if (expanded := expand_home(given)) != given:
            setattr(section, leaf, expanded)
