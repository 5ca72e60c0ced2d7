"""A rule: one condition on a configuration, with an example on either side of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on a configuration, with an example on either side of it."""

    id: str
    """Short name, for people and for commands that explain a rule."""
    fields: tuple[str, ...]
    """Paths whose values `test` takes, in order: `section.field`, or `facts.name` for an outside fact."""
    test: Callable[..., str | None]
    """Returns None when the values are fine, else what is wrong with them."""
    why: str
    """Reason for the condition."""
    fix: str
    """What to do about it."""
    severity: Literal["error", "warning"] = "error"
    """A warning is about a wish that cannot be granted, or about speed: the run is right without it."""
    fails: Mapping[str, object]
    """An example that the rule refuses: path to value."""
    passes: Mapping[str, object]
    """An example that the rule accepts: path to value."""

    def check(self, *values: object) -> str | None:
        """Return None when the values are fine, else what is wrong, why, and what to do, in one text."""
        problem = self.test(*values)
        return None if problem is None else f"{problem}, because {self.why}. {self.fix}"
