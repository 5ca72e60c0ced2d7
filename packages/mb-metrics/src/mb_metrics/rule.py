"""What a rule is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold.

    A rule with a `facts.` field is about the machine; it applies where that fact is known.
    """

    id: str
    """V and a number where Megatron trainers have the same check, else L and a number."""
    fields: tuple[str, ...]
    """Paths ("section.field") of the values that the test gets, in this order."""
    test: Callable[..., str | None]
    """Returns None, or what is wrong, with the values."""
    why: str
    """The reason."""
    fix: str
    """What to do."""
    severity: Literal["error", "warning"] = "error"
    """Whether the run is refused."""
    fails: Mapping[str, object]
    """An example, path to value, that the rule refuses."""
    passes: Mapping[str, object]
    """An example that it accepts."""
