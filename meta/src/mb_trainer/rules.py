"""Rules of the trainer itself: sections that this version does not carry out are refused, never ignored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold."""

    id: str
    fields: tuple[str, ...]
    test: Callable[..., str | None]
    why: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    fails: Mapping[str, object]
    passes: Mapping[str, object]


def not_carried_out(number: int, section: str, what: str) -> Rule:
    """Make the rule that refuses a section as a whole."""
    return Rule(
        id=f"T{number:02d}",
        fields=(section,),
        test=lambda value: f"{section} is set",
        why=f"this version has no {what}, and would leave it out without a word",
        fix=f"Remove the section {section}.",
        fails={section: {}},
        passes={section: None},
    )


RULES = (
    not_carried_out(1, "profiling", "profiler"),
    not_carried_out(2, "peft", "adapters"),
    not_carried_out(3, "tensor_inspect", "tensor inspection"),
)
"""Every rule of the trainer."""
