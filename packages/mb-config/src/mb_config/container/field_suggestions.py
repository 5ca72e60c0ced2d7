"""Suggestions for misspelled field names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches

from mb_config.container.field_types import dataclasses_of, hints
from mb_config.errors import UnknownKeyError


def unknown_key_error(
    path: str, siblings: Iterable[str], root: object, *, origin: str = ""
) -> UnknownKeyError:
    """Return the error for an unknown key, with the nearest names.

    Searches the `siblings` of the key first, then the last part of its path in all sections of `root`
    (a dataclass or an instance of one).
    """
    nearest = nearest_paths(path, siblings, root)
    owners = owners_of(path, root)
    if owners:
        message = (
            f"no such field in this class: only {' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it. "
            f"Write _target_: {owners[0]} in {path.rpartition('.')[0]}"
        )
        return UnknownKeyError(message, path=path, origin=origin, nearest=nearest)
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    return UnknownKeyError(f"no such field{hint}", path=path, origin=origin, nearest=nearest)


def owners_of(path: str, root: object) -> list[str]:
    """Return at most three of the possible classes of a section that have the field of a path."""
    section, _, leaf = path.partition(".")
    if not leaf or not is_dataclass(root):
        return []
    cls = root if isinstance(root, type) else type(root)
    candidates = dataclasses_of(hints(cls).get(section))
    return [cls.__name__ for cls in candidates if leaf in section_fields(cls)][:3]


def nearest_paths(path: str, siblings: Iterable[str], root: object) -> list[str]:
    """Return at most three paths, the most similar first."""
    parent, _, leaf = path.rpartition(".")
    names = list(siblings)
    close = get_close_matches(leaf, names, n=2, cutoff=0.85) or get_close_matches(
        leaf, names, n=2, cutoff=0.7
    )
    found = [f"{parent}.{name}" if parent else name for name in close]
    every = [f"{name}.{field}" for name, inside in _sections(root).items() for field in inside]
    found += [candidate for candidate in every if candidate.rpartition(".")[2] == leaf]
    near = list(dict.fromkeys(found))[:3] or get_close_matches(path[:200], every, n=2, cutoff=0.75)
    return [candidate for candidate in near if candidate != path]


def section_fields(value: object) -> list[str]:
    """Return the names in a section: fields of a dataclass or its class, or keys of a mapping."""
    if isinstance(value, Mapping):
        return [str(key) for key in value]
    if is_dataclass(value):
        return [f.name for f in fields(value) if f.init]
    return []


def field_alias(section: object, name: str) -> str | None:
    """Return the path in a section, or in its class, for which it takes another name, from its `field_aliases`."""
    aliases: Mapping[str, str] = getattr(section, "field_aliases", {})
    return aliases.get(name)


def _sections(root: object) -> dict[str, list[str]]:
    if not is_dataclass(root):
        return {}
    cls = root if isinstance(root, type) else type(root)
    sections: dict[str, list[str]] = {}
    for field in fields(root):
        names = [] if isinstance(root, type) else section_fields(getattr(root, field.name))
        for candidate in dataclasses_of(hints(cls).get(field.name)):
            names += section_fields(candidate)
        sections[field.name] = list(dict.fromkeys(names))
    return sections
