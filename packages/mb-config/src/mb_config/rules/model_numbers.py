"""Rules on numbers that every Megatron model section has, whatever its family."""

from __future__ import annotations

from mb_config.rules.rule import Rule
from mb_config.rules.wording import assignments

_DROPOUTS = ("model.hidden_dropout", "model.attention_dropout")
_POSITIVE = ("model.init_method_std", "model.layernorm_epsilon")


def _probability(*values: float | None) -> str | None:
    wrong = assignments(_DROPOUTS, values, where=lambda value: value is not None and not 0 <= value < 1)
    return f"must be from 0 up to, not including, 1 ({wrong})" if wrong else None


def _positive(*values: float | None) -> str | None:
    wrong = assignments(_POSITIVE, values, where=lambda value: value is not None and value <= 0)
    return f"must be above 0 ({wrong})" if wrong else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="MN01",
        fields=_DROPOUTS,
        test=_probability,
        why="it is the probability that an activation is set to zero",
        fix="Set it to 0 (none) or to a number such as 0.1.",
        fails={"model.hidden_dropout": 1.5},
        passes={"model.hidden_dropout": 0.1},
    ),
    Rule(
        id="MN02",
        fields=_POSITIVE,
        test=_positive,
        why="weights start with this spread, and a norm divides by no less than this",
        fix="Set model.init_method_std to a number such as 0.02, model.layernorm_epsilon to one such as 1e-5.",
        fails={"model.init_method_std": -1.0},
        passes={"model.init_method_std": 0.02},
    ),
)
