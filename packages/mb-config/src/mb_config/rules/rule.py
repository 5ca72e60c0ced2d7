"""The record of a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on a configuration: a pure function on the values of some fields."""

    id: str
    """Its number, as in `V137`."""

    fields: tuple[str, ...]
    """Paths that it reads, the one to blame first: `section.field`, or `facts.world_size`."""

    test: Callable[..., str | None]
    """Takes those values in that order; returns None, or what is wrong with the values in it."""

    why: str
    """Completes "because ..."."""

    fix: str
    """What to do, as a sentence."""

    severity: Literal["error", "warning"] = "error"
    """Whether it refuses the run."""

    fails: Mapping[str, object]
    """An example that it refuses."""

    passes: Mapping[str, object]
    """An example that it accepts."""


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
    """The same condition on each of several fields: a rule for each, `number` with a letter behind it."""
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
