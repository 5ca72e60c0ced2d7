"""Comparison of versions by their numbers."""

from __future__ import annotations

import re


def at_least(version: str, *minimum: int) -> bool:
    """Return True if `version` is at least `minimum`.

    Suffixes are ignored: 2.7.0.dev0 is at least 2.7, so that builds from source are accepted.
    """
    return release(version) >= minimum


def release(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: (2, 6, 0) of "2.6.0a0+34c6371d24"; empty if it has none."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
