"""Limit on the nesting of plain data, so that data that contains itself does not overflow the stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from mb_config.errors import ConfigReadError

MAX_DEPTH = 64
"""Maximum number of levels. A configuration has about five."""


def reject_deep_nesting(data: Any) -> None:
    """Reject mappings, lists and dataclasses that contain themselves or are nested too deeply.

    Raises:
        ConfigReadError: If a value contains itself, or is nested deeper than `MAX_DEPTH`; has the path.
    """
    open_ids: list[int] = []
    stack: list[Iterator[tuple[str, Any]]] = [iter([("", data)])]
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            open_ids[len(stack) - 1 :] = []
            continue
        path, value = step
        nested = _inside(value, path)
        if nested is None:
            continue
        if id(value) in open_ids:
            raise ConfigReadError("contains itself", path=path)
        if len(open_ids) >= MAX_DEPTH:
            raise ConfigReadError(f"is nested deeper than {MAX_DEPTH} levels", path=f"{path[:80]}...")
        open_ids.append(id(value))
        stack.append(nested)


def _inside(value: Any, path: str) -> Iterator[tuple[str, Any]] | None:
    """Return the items in a value with their paths; None if it has none."""
    if isinstance(value, list | tuple):
        return ((f"{path}[{index}]", item) for index, item in enumerate(value))
    if isinstance(value, Mapping):
        pairs = ((str(key), item) for key, item in value.items())
    elif not is_dataclass(value) or isinstance(value, type):
        return None
    else:
        pairs = ((item.name, getattr(value, item.name)) for item in fields(value))
    return ((f"{path}.{name}" if path else name, item) for name, item in pairs)
