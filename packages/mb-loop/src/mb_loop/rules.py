"""What the loop cannot do with its settings, as rules to check before launch. The standard library only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition on some fields, with what to say when it does not hold."""

    id: str
    fields: tuple[str, ...]
    test: Callable[..., str | None]
    why: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    fails: Mapping[str, object]
    passes: Mapping[str, object]


def _not_compared(interval: int | None) -> str | None:
    return None if interval is None else f"{interval} would compare nothing"


def _collections_possible(manual: bool, interval: int) -> str | None:
    return f"manual_gc_interval={interval} is negative" if manual and interval < 0 else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="LP01",
        fields=("train.check_weight_hash_across_dp_replicas_interval",),
        test=_not_compared,
        why="this version does not compare the weights of replicas, and silence would look like agreement",
        fix="Leave it unset.",
        fails={"train.check_weight_hash_across_dp_replicas_interval": 100},
        passes={"train.check_weight_hash_across_dp_replicas_interval": None},
    ),
    Rule(
        id="LP02",
        fields=("train.manual_gc", "train.manual_gc_interval"),
        test=_collections_possible,
        why="no step is a multiple of a negative interval",
        fix="Use 0 (collect around evaluations only) or a number of steps.",
        fails={"train.manual_gc": True, "train.manual_gc_interval": -1},
        passes={"train.manual_gc": True, "train.manual_gc_interval": 0},
    ),
)
"""All rules of this package. A rule whose section is absent does not apply."""
