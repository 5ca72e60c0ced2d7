"""Values as a user writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def format_value(value: object) -> str:
    """A value as it stands in a file or on the command line: true, false, null."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def format_assignments(paths: Iterable[str], values: Iterable[T], *, where: Callable[[T], bool]) -> str:
    """`name=value` of each field whose value is as `where` says, without its section: "tp=2, pp=0"."""
    return ", ".join(
        f"{path.rpartition('.')[2]}={format_value(value)}"
        for path, value in zip(paths, values, strict=True)
        if where(value)
    )
