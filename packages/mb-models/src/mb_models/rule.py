"""The record of a rule, and a short way to write down one of Megatron Core's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold, with the reason, the remedy, and an example of each side."""

    id: str
    """Its number, such as `G02`."""
    fields: tuple[str, ...]
    """Paths that it reads, such as `model.num_layers`, the one to blame first."""
    test: Callable[..., str | None]
    """Takes their values in that order; returns None, or what is wrong with them."""
    why: str
    """Completes "because ..."."""
    fix: str
    """What to do, as a sentence."""
    severity: Literal["error", "warning"] = "error"
    """Whether it refuses the model."""
    fails: Mapping[str, object]
    """Path -> value: an example that it refuses."""
    passes: Mapping[str, object]
    """Path -> value: an example that it accepts."""
    fallback: Mapping[str, object] = MappingProxyType({})
    """Path -> value that replaces what it rejects where the user did not set it; empty: it only rejects."""


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
    """Write down one limit; the examples are in the order of the fields."""
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
    """Write down one rule on any sections and facts; the examples are in the order of the paths."""
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
