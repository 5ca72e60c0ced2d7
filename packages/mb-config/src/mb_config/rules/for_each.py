"""Rules that apply the same condition to several fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_lowercase

from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule


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
        rule(
            f"{number}{letter}",
            path,
            test,
            why=why,
            fix=f"Set {path} to {fix}.",
            fails=(fails,),
            passes=(passes,),
        )
        for letter, path in zip(ascii_lowercase, paths, strict=False)
    )
