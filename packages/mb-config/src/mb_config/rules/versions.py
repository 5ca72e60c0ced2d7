"""Compare versions by their numbers."""

from __future__ import annotations


def at_least(version: str, *minimum: int) -> bool:
    """True if `version` is not below the numbers of `minimum`.

    What follows the numbers is ignored: 2.7.0.dev0 is at least 2.7, as a build from source is meant to be.
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
