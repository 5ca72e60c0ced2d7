"""The record of a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on a configuration: a pure function on the values of some fields."""

    id: str
    """Its number, as in `V137`."""

    fields: tuple[str, ...]
    """Paths that it reads, the one to blame first: `section.field`, or `facts.world_size`."""

    test: Callable[..., str | None]
    """Takes those values in that order; returns None, or what is wrong with the values in it."""

    why: str
    """Completes "because ..."."""

    fix: str
    """What to do, as a sentence."""

    severity: Literal["error", "warning"] = "error"
    """Whether it refuses the run."""

    fails: Mapping[str, object]
    """An example that it refuses."""

    passes: Mapping[str, object]
    """An example that it accepts."""
