"""Record of a rule, and constructors for rules on fields of the model section."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition on fields, with its reason, a fix, and an example of each outcome."""

    id: str
    """Identifier, such as `G02`."""
    fields: tuple[str, ...]
    """Paths of the fields that the test reads, such as `model.num_layers`; errors are reported on the first."""
    test: Callable[..., str | None]
    """Function of their values, in that order; returns None, or a description of the problem."""
    why: str
    """Reason; completes "because ..."."""
    fix: str
    """Instruction to the user, as a sentence."""
    severity: Literal["error", "warning"] = "error"
    """An error rejects the model, a warning does not."""
    fails: Mapping[str, object]
    """Path -> value: an example that the rule rejects."""
    passes: Mapping[str, object]
    """Path -> value: an example that the rule accepts."""
    fallback: Mapping[str, object] = MappingProxyType({})
    """Path -> value that replaces a rejected value which the user did not set; empty: the rule only rejects."""


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
    rule = make_rule(number, paths, test, why=why, fix=fix, fails=fails, passes=passes)
    return replace(rule, severity=severity)


def make_rule(
    number: str,
    paths: Sequence[str],
    test: Callable[..., str | None],
    *,
    why: str,
    fix: str,
    fails: Sequence[object],
    passes: Sequence[object],
    fallback: Mapping[str, object] | None = None,
) -> Rule:
    """Return a rule on any sections and facts; the examples are in the order of the paths."""
    return Rule(
        id=number,
        fields=tuple(paths),
        test=test,
        why=why,
        fix=fix,
        fails=dict(zip(paths, fails, strict=True)),
        passes=dict(zip(paths, passes, strict=True)),
        fallback=fallback or {},
    )
