"""Versions of installed distributions, and comparison of versions by their numbers."""

from __future__ import annotations

import re
from importlib import import_module


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution without importing it; None if it is not installed."""
    metadata = import_module("importlib.metadata")  # not at the top: it takes longer than the rest
    try:
        version: str = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
    return version


def installed_versions(*distributions: str) -> dict[str, str]:
    """Return the versions of distributions without those that are not installed, as in a source tree on the path."""
    found = {name: installed_version(name) for name in distributions}
    return {name: version for name, version in found.items() if version is not None}


def at_least(version: str, *minimum: int) -> bool:
    """Return True if `version` is at least `minimum`.

    Suffixes are ignored: 2.7.0.dev0 is at least 2.7, so that builds from source are accepted.
    """
    return release(version) >= minimum


def release(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: (2, 6, 0) of "2.6.0a0+34c6371d24"; empty if it has none."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
