"""Record of a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition on a configuration: a pure function of the values of some fields."""

    id: str
    """Id, such as `V137`."""

    fields: tuple[str, ...]
    """Paths that the rule reads: `section.field` or `facts.world_size`. Messages begin with the first one."""

    test: Callable[..., str | None]
    """Function of those values in that order. Returns None, or a text with the problem and the values."""

    why: str
    """The reason, as the end of a sentence "because ..."."""

    fix: str
    """The fix, as a sentence."""

    severity: Literal["error", "warning"] = "error"
    """An error prevents the run."""

    fails: Mapping[str, object]
    """Example that the rule rejects."""

    passes: Mapping[str, object]
    """Example that the rule accepts."""


def rules_for_each(
    number: str,
    paths: Sequence[str],
    test: Callable[..., str | None],
    *,
    why: str,
    fix: str,
    fails: object,
    passes: object,
) -> tuple[Rule, ...]:
    """Return one rule per field with the same condition. The ids are `number` with a letter appended."""
    return tuple(
        Rule(
            id=f"{number}{letter}",
            fields=(path,),
            test=test,
            why=why,
            fix=f"Set {path} to {fix}.",
            fails={path: fails},
            passes={path: passes},
        )
        for letter, path in zip(ascii_lowercase, paths, strict=False)
    )
