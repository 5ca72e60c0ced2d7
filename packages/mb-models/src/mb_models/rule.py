"""The record of a rule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold, with the reason, the remedy, and an example of each side."""

    id: str
    """Its number, such as `G02`."""
    fields: tuple[str, ...]
    """Paths that it reads, such as `model.num_layers`, the one to blame first."""
    test: Callable[..., str | None]
    """Takes their values in that order; returns None, or what is wrong with them."""
    why: str
    """Completes "because ..."."""
    fix: str
    """What to do, as a sentence."""
    severity: Literal["error", "warning"] = "error"
    """Whether it refuses the model."""
    fails: Mapping[str, object]
    """Path -> value: an example that it refuses."""
    passes: Mapping[str, object]
    """Path -> value: an example that it accepts."""
