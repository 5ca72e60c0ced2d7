"""What a rule is. Standard library only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on values of the configuration, with an example on either side of it."""

    id: str
    """Number of the rule."""

    fields: tuple[str, ...]
    """Paths of the values that the test gets, in this order: "section.field"."""

    test: Callable[..., str | None]
    """Returns None where the values are fine, else what is wrong, with the values."""

    why: str
    """The reason."""

    fix: str
    """What to do."""

    severity: Literal["error", "warning"] = "error"
    """Whether the run is refused."""

    fails: Mapping[str, object]
    """Values by path that the rule refuses."""

    passes: Mapping[str, object]
    """Values by path that the rule lets through."""
