"""Rules on numbers that every Megatron model section has."""

from __future__ import annotations

from mb_config.rules.for_each import rules_for_each
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule


def _probability(value: float | None) -> str | None:
    if value is None or 0 <= value < 1:
        return None
    return f"must be in [0, 1), not {value}"


def _positive(value: float | None) -> str | None:
    return f"must be above 0, not {value}" if value is not None and value <= 0 else None


def _share(value: float | None) -> str | None:
    return None if value is None or 0 < value <= 1 else f"must be in (0, 1], not {value}"


RULES: tuple[Rule, ...] = (
    *rules_for_each(
        "MN01",
        ("model.hidden_dropout", "model.attention_dropout"),
        _probability,
        why="it is the probability that an activation is set to zero",
        fix="0 (none) or a number such as 0.1",
        fails=1.5,
        passes=0.1,
    ),
    *rules_for_each(
        "MN02",
        ("model.init_method_std", "model.layernorm_epsilon"),
        _positive,
        why="it is the standard deviation of initial weights, or the lower bound of the divisor of a norm",
        fix="a number such as 0.02 (standard deviation) or 1e-5 (epsilon)",
        fails=-1.0,
        passes=0.02,
    ),
    rule(
        "MN03",
        "model.rotary_percent",
        _share,
        why="it is the fraction of each attention head to which rotary position embeddings apply",
        fix="Set model.rotary_percent to a number such as 1.0 or 0.5.",
        fails=(-0.5,),
        passes=(0.5,),
    ),
)
