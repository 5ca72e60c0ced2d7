"""Conditions checked twice: on the `comm_overlap` section and, with the suffix M, on the model's own field."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mb_overlap.transformer_engine.te_versions import parse_version
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

EP_OVERLAP = "overlap_moe_expert_parallel_comm"
DELAY_WGRAD = "delay_wgrad_compute"
CUDA_GRAPH_FIELDS = ("model.cuda_graph_impl", "model.cuda_graph_modules")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Condition with values that violate it and values that satisfy it."""

    letter: str
    """Letter after the number of the rule."""
    fields: tuple[str, ...]
    """Paths whose values `test` takes."""
    test: Callable[..., str | None]
    """Returns None for valid values, and a description of the problem otherwise."""
    why: str
    """Reason for the condition."""
    fix: str
    """Recommended change; `make_rules` adds the alternative of disabling the field."""
    fails: tuple[object, ...]
    """Values that violate the condition."""
    passes: tuple[object, ...]
    """Values that satisfy the condition."""


def make_rules(number: str, field: str, conditions: Iterable[Condition], *, section: str) -> tuple[Rule, ...]:
    """Return one rule per condition, which applies if `section.field` is on."""
    path = f"{section}.{field}"
    return tuple(
        rule(
            f"{number}{condition.letter}{'M' if section == 'model' else ''}",
            (path, *condition.fields),
            if_requested(condition.test),
            why=condition.why,
            fix=f"{condition.fix[:-1]}, or {path}=false.",
            fails=(True, *condition.fails),
            passes=(True, *condition.passes),
        )
        for condition in conditions
    )


def if_requested(test: Callable[..., str | None]) -> Callable[..., str | None]:
    """Return a test that takes the switch as its first argument and passes if the switch is off."""

    def guarded(requested: bool | None, *values: Any) -> str | None:
        return test(*values) if requested else None

    return guarded


def captured_modules(impl: object, modules: Any) -> frozenset[str]:
    """Return the names of the modules that Transformer Engine's CUDA graphs capture.

    Empty if complete layers are captured, or nothing.

    Args:
        impl: `cuda_graph_impl`.
        modules: `cuda_graph_modules`: a name, a list of names or of Megatron's enumeration members, or None.
    """
    if impl != "transformer_engine" or not modules:
        return frozenset()
    parts = modules.split(",") if isinstance(modules, str) else modules
    names = {(part if isinstance(part, str) else part.name).strip().lower() for part in parts}
    return frozenset(names - {"", "full"})


def is_older(version: str, *needed: int) -> bool:
    """Return whether a version is older than a release."""
    return parse_version(version) < needed
