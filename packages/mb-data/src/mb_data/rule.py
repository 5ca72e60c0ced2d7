"""Rule class, and constructors for common kinds of rules. Standard library only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Condition on values of the configuration, with an example that fails and one that passes."""

    id: str
    """Number of the rule."""

    fields: tuple[str, ...]
    """Paths ("section.field") of the values that are passed to the test, in this order."""

    test: Callable[..., str | None]
    """Function that returns None for valid values, and otherwise a description of the problem with the values."""

    why: str
    """Reason for the rule."""

    fix: str
    """Instruction that resolves the problem."""

    severity: Literal["error", "warning"] = "error"
    """An error rejects the run; a warning does not."""

    fails: Mapping[str, object]
    """Example of values by path that the rule rejects."""

    passes: Mapping[str, object]
    """Example of values by path that the rule accepts."""


def unless(passes: object, message: str) -> str | None:
    """Return the message if the condition is false, otherwise None."""
    return None if passes else message


def inert(rule_id: str, path: str, *, neutral: object, requested: object, fix: str) -> Rule:
    """Return a rule that rejects a field which is not implemented, unless it is None or has its neutral value."""
    return Rule(
        id=rule_id,
        fields=(path,),
        test=lambda value: unless(value is None or value == neutral, f"{value!r} would have no effect"),
        why="this option is not implemented yet; ignoring it silently would hide the problem until the run is in "
        "progress",
        fix=fix,
        fails={path: requested},
        passes={path: neutral},
    )
