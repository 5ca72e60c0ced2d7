"""Overrides of one plain value, such as `optimizer.lr=1e-4`, parsed without Hydra, whose import takes 0.4 s."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

_PLAIN = re.compile(r"(?P<sign>\+{0,2})(?P<path>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)=(?P<value>.+)", re.ASCII)
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TEXT = re.compile(r"[A-Za-z_/][\w/.-]*", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_NUMBERS = ("nan", "inf")
"""Beginnings of words that Hydra's grammar reads as numbers."""
_DIGITS = 18
"""Longest number that is parsed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One override."""

    kind: Literal["change", "add", "force", "delete"]
    """`a=b`, `+a=b`, `++a=b`, `~a`."""

    keys: tuple[str, ...]
    """Parts of the dotted path."""

    value: Any
    """The value as numbers, text, lists and mappings; None for null."""

    text: str
    """The value as written."""

    has_value: bool
    """False for `~a`."""

    @property
    def path(self) -> str:
        """The dotted path."""
        return ".".join(self.keys)


def parse_plain(text: str) -> Override | None:
    """Parse an override of a number, a word or a path, as Hydra does; None for every other one.

    >>> parse_plain("optimizer.lr=1e-4").value
    0.0001
    >>> parse_plain("a=[1,2]") is None
    True
    """
    match = _PLAIN.fullmatch(text)
    if match is None:
        return None
    written = match["value"]
    value: Any = written
    if len(written) <= _DIGITS and _INTEGER.fullmatch(written):
        value = int(written)
    elif len(written) <= _DIGITS and _FLOAT.fullmatch(written):
        value = float(written)
    elif written.lower() in _WORDS:
        value = _WORDS[written.lower()]
    elif _TEXT.fullmatch(written) is None or written.lower().startswith((*_NUMBERS, *_WORDS)):
        return None
    kinds: dict[str, Literal["change", "add", "force"]] = {"": "change", "+": "add", "++": "force"}
    return Override(
        kind=kinds[match["sign"]],
        keys=tuple(match["path"].split(".")),
        value=value,
        text=written,
        has_value=True,
    )
