"""Formatting of values as in files and on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def format_value(value: object) -> str:
    """Return a value as written in a file or on the command line: true, false, null."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def format_assignments(paths: Iterable[str], values: Iterable[T], *, where: Callable[[T], bool]) -> str:
    """Return `name=value`, without the section, for each field whose value satisfies `where`: "tp=2, pp=0"."""
    return ", ".join(
        f"{path.rpartition('.')[2]}={format_value(value)}"
        for path, value in zip(paths, values, strict=True)
        if where(value)
    )
