"""Configuration as YAML text, optionally with the origin of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import yaml

from mb_config.codec import join, to_dict
from mb_config.provenance import Provenance


def show(config: Any, provenance: Provenance | None = None, *, origin: bool = False) -> str:
    """Return the configuration as YAML text that can be loaded again. Secrets are masked.

    Values computed by resolving are appended as comments.

    Args:
        config: A dataclass of sections.
        provenance: Origins of the values; None: what the sections themselves record.
        origin: Append the origin of each value as a comment.
    """
    known = Provenance.of(config) if provenance is None else provenance
    rows = list(_rows(to_dict(config), path="", depth=0))
    width = min(60, max((len(text) for text, path in rows if path), default=0))
    lines = [
        f"{text:<{width}}  # {known.origin(path)}" if origin and path is not None else text
        for text, path in rows
    ]
    return "\n".join([*lines, *_computed(config, known, origin=origin)]) + "\n"


def _rows(data: Mapping[str, Any], *, path: str, depth: int) -> Iterator[tuple[str, str | None]]:
    """Yield lines, each with the path of its value, or None for the first line of a section."""
    indent = "  " * depth
    for key, value in data.items():
        here = join(path, key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:", None
            yield from _rows(value, path=here, depth=depth + 1)
        else:
            yield f"{indent}{key}: {_inline(value)}", here


def _computed(config: Any, known: Provenance, *, origin: bool, path: str = "") -> Iterator[str]:
    """Yield the fields that no file sets and that have a value."""
    for item in fields(config):
        value, here = getattr(config, item.name), join(path, item.name)
        if not item.init and value is not None:
            yield f"# {here}: {_inline(value)}" + (f"  # {known.origin(here)}" if origin else "")
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _computed(value, known, origin=origin, path=here)


def _inline(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return text.removesuffix("...\n").strip()
