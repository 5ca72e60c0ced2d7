"""What a rule of the `checkpoint` section is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One check: `test` gets the values of `fields` in order and returns None, or what is wrong with them."""

    id: str
    fields: tuple[str, ...]
    test: Callable[..., str | None]
    why: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    fails: Mapping[str, object]
    passes: Mapping[str, object]
