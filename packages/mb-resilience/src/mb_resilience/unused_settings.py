"""Warnings about fields that have no effect, because the feature that reads them is disabled."""

from collections.abc import Mapping

from mb_schema.rule_kinds import as_warning, no_effect
from mb_schema.rules import Rule

Defaults = Mapping[str, object]
"""Default of each field of a section, by path such as "ft.simulate_fault", in the order of the fields."""


def without_effect(settings: list[str]) -> str | None:
    """Return that the settings, such as "spiky_loss_factor=3.0", have no effect; None if there are none."""
    return f"{', '.join(settings)} {'has' if len(settings) == 1 else 'have'} no effect" if settings else None


def unused_while_disabled(rule_id: str, defaults: Defaults, *, switch: str) -> Rule:
    """Return a rule that warns about fields of a disabled section that differ from their defaults.

    Args:
        rule_id: id of the rule.
        defaults: defaults of all fields of the section, the switch included.
        switch: path of the field that enables the section.
    """
    others = {path: default for path, default in defaults.items() if path != switch}
    changed = ("something else", *[*others.values()][1:])
    return as_warning(
        no_effect(
            rule_id,
            switch,
            others,
            why=f"{switch}=false disables the section",
            fix=f"Set {switch}=true, or remove these fields.",
            fails=(False, *changed),
            passes=(True, *changed),
        )
    )
