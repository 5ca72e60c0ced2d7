"""Comparison of versions by their numbers."""

from __future__ import annotations


def at_least(version: str, *minimum: int) -> bool:
    """Return True if `version` is at least `minimum`.

    Suffixes are ignored: 2.7.0.dev0 is at least 2.7, so that builds from source are accepted.
    """
    return _numbers(version) >= minimum


def _numbers(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
