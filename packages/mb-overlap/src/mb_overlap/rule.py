"""Condition on a configuration, with one example that violates it and one that satisfies it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Condition on a configuration, with one example that violates it and one that satisfies it."""

    id: str
    """Short name, printed in messages and accepted by commands that explain a rule."""
    fields: tuple[str, ...]
    """Paths whose values `test` takes, in order: `section.field`, or `facts.name` for an outside fact."""
    test: Callable[..., str | None]
    """Returns None for valid values, and a description of the problem otherwise."""
    why: str
    """Reason for the condition."""
    fix: str
    """Recommended change."""
    severity: Literal["error", "warning"] = "error"
    """"warning" for a requested option that is not available, or for lost speed: the results are still correct."""
    fails: Mapping[str, object]
    """Example that violates the rule: path to value."""
    passes: Mapping[str, object]
    """Example that satisfies the rule: path to value."""

    def check(self, *values: object) -> str | None:
        """Return None for valid values, and otherwise one text with the problem, the reason and the fix."""
        problem = self.test(*values)
        return None if problem is None else f"{problem}, because {self.why}. {self.fix}"
