"""Expansion of the home directory in fields that name files or directories."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mb_schema.paths import expand_home


def expand_home_in(config: Any, fields: Iterable[str]) -> None:
    """Replace a leading `~` by the home directory in the given fields of a configuration, in place.

    The origin of a field does not change. Sections and fields that are absent are skipped.

    Args:
        config: A container of sections.
        fields: Paths, such as `checkpoint.save`.
    """
    for path in fields:
        name, _, leaf = path.partition(".")
        section = getattr(config, name, None)
        given = getattr(section, leaf, None)
        if (expanded := expand_home(given)) != given:
            setattr(section, leaf, expanded)
