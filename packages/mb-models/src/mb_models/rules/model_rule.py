"""Constructor of rules on fields of the model section."""

from collections.abc import Callable, Sequence
from typing import Literal

from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule


def model_rule(
    number: str,
    fields: Sequence[str],
    test: Callable[..., str | None],
    *,
    why: str,
    fix: str,
    fails: Sequence[object],
    passes: Sequence[object],
    severity: Literal["error", "warning"] = "error",
) -> Rule:
    """Return a rule on fields of the model section; the examples are in the order of the fields."""
    paths = [f"model.{name}" for name in fields]
    return rule(number, paths, test, why=why, fix=fix, fails=fails, passes=passes, severity=severity)
