"""Conditions that stand twice: for the wish of a `comm_overlap` section, and ("M") for the model's own switch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mb_overlap.rule import Rule
from mb_overlap.te_versions import parse_version

EP_OVERLAP = "overlap_moe_expert_parallel_comm"
DELAY_WGRAD = "delay_wgrad_compute"
CUDA_GRAPH_FIELDS = ("model.cuda_graph_impl", "model.cuda_graph_modules")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition, with the values of its fields on either side."""

    letter: str
    """What follows the number of the rule."""
    fields: tuple[str, ...]
    """Paths whose values `test` takes."""
    test: Callable[..., str | None]
    """Returns None when the values are fine, else what is wrong with them."""
    why: str
    """Reason."""
    fix: str
    """What to do about it; not to wish is the other way, and is added."""
    fails: tuple[object, ...]
    """Values that it refuses."""
    passes: tuple[object, ...]
    """Values that it accepts."""


def make_rules(
    number: str, requested: str, conditions: Iterable[Condition], *, section: str
) -> tuple[Rule, ...]:
    """Return a rule for each condition, which holds when `section.wish` is on."""
    path = f"{section}.{requested}"
    return tuple(
        Rule(
            id=f"{number}{condition.letter}{'M' if section == 'model' else ''}",
            fields=(path, *condition.fields),
            test=if_requested(condition.test),
            why=condition.why,
            fix=f"{condition.fix[:-1]}, or {path}=false.",
            fails=dict(zip((path, *condition.fields), (True, *condition.fails), strict=True)),
            passes=dict(zip((path, *condition.fields), (True, *condition.passes), strict=True)),
        )
        for condition in conditions
    )


def if_requested(test: Callable[..., str | None]) -> Callable[..., str | None]:
    """Return a test that takes the wish first, and says nothing without it."""

    def guarded(requested: bool | None, *values: Any) -> str | None:
        return test(*values) if requested else None

    return guarded


def captured_modules(impl: object, modules: Any) -> frozenset[str]:
    """Return the names of the modules that Transformer Engine's CUDA graphs capture, empty for whole layers or none.

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
    """Say whether a version comes before a release."""
    return parse_version(version) < needed
