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
        if not _is_nested(value):
            continue
        if id(value) in open_ids:
            raise ConfigReadError("contains itself", path=path)
        if len(open_ids) >= MAX_DEPTH:
            raise ConfigReadError(f"is nested deeper than {MAX_DEPTH} levels", path=f"{path[:80]}...")
        open_ids.append(id(value))
        stack.append(_inside(value, path))


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) or (is_dataclass(value) and not isinstance(value, type))


def _inside(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        return ((f"{path}[{index}]", item) for index, item in enumerate(value))
    if isinstance(value, Mapping):
        pairs = ((str(key), item) for key, item in value.items())
    else:
        pairs = ((item.name, getattr(value, item.name)) for item in fields(value))
    return ((f"{path}.{name}" if path else name, item) for name, item in pairs)
