"""Definition of a rule of the `checkpoint` section."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Check of a configuration: `test` receives the values of `fields` in order and returns None or a problem."""

    id: str
    fields: tuple[str, ...]
    test: Callable[..., str | None]
    why: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    fails: Mapping[str, object]
    passes: Mapping[str, object]
