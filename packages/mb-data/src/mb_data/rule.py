"""What a rule is, and how many of them are made. Standard library only."""

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


def unless(passes: object, message: str) -> str | None:
    """Return the message of a condition that does not hold."""
    return None if passes else message


def inert(rule_id: str, path: str, *, neutral: object, requested: object, fix: str) -> Rule:
    """Refuse a field that nothing reads, unless it asks for nothing."""
    return Rule(
        id=rule_id,
        fields=(path,),
        test=lambda value: unless(value is None or value == neutral, f"{value!r} would have no effect"),
        why="nothing in this version reads it, and a wish that is passed over in silence is missed too late",
        fix=fix,
        fails={path: requested},
        passes={path: neutral},
    )
