"""Rules for `mb sweep`, evaluated at each point, also if the points differ in their modules."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mb_config import RuleLike
from mb_models import MimoModelConfig
from mb_models.mimo_layout_rules import LAYOUT, PROCESSES, TP, has_layouts
from mb_trainer.rules import Rule

WORLD = "facts.world_size"
SIZES = (TP, "model.pipeline_model_parallel_size", "model.context_parallel_size")


def rules_at_points(rules: Sequence[RuleLike], model: object) -> Sequence[RuleLike]:
    """Return the rules for a sweep over a model; they read the parallelism of its modules, if it can have several.

    Most rules treat modules with per-module parallelism as one replica, as `mb_trainer.preflight.as_rules_ask` does for
    one configuration.
    """
    if not isinstance(model, MimoModelConfig):
        return rules
    return [at_points(rule) if {WORLD, PROCESSES}.intersection(rule.fields) else rule for rule in rules]


def at_points(rule: RuleLike) -> RuleLike:
    """Return a rule on process counts as a rule that also reads the parallelism and derives the processes from it."""
    fields = tuple(
        dict.fromkeys([*(WORLD if path == PROCESSES else path for path in rule.fields), *LAYOUT, *SIZES])
    )
    return Rule(
        id=rule.id,
        fields=fields,
        test=asking_by_layout(rule, fields),
        why=rule.why,
        fix=rule.fix,
        severity=rule.severity,
        fails=rule.fails,
        passes=rule.passes,
    )


def asking_by_layout(rule: RuleLike, fields: Sequence[str]) -> Callable[..., str | None]:
    """Return the test of a rule as a test that takes the values of `fields`."""

    def test(*values: Any) -> str | None:
        known: Mapping[str, Any] = dict(zip(fields, values, strict=True))
        apart = has_layouts(*(known[path] for path in LAYOUT))
        if PROCESSES in rule.fields and not apart:
            return None
        tp, pp, cp = (known[path] or 1 for path in SIZES)
        told = {**known, PROCESSES: known[WORLD], WORLD: max(1, tp * pp * cp) if apart else known[WORLD]}
        return rule.test(*(told[path] for path in rule.fields))

    return test
