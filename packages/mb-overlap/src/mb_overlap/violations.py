"""Rule checks on sections of any type, with one record per violated rule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mb_overlap.field_access import field_name, read_field
from mb_overlap.rule import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Rule that a configuration violates."""

    id: str
    """Id of the rule."""
    severity: Literal["error", "warning"]
    """"error" for a run that must not start; "warning" for lost speed or a requested option that is not available."""
    fields: tuple[str, ...]
    """Paths that the rule reads."""
    values: Mapping[str, object]
    """Path to its value."""
    message: str
    """Problem, with the values."""
    why: str
    """Reason for the rule."""
    fix: str
    """Recommended change."""

    def __str__(self) -> str:
        return f"[{self.id}] {self.fields[0]}: {self.message}, because {self.why}. {self.fix}"


def check_rules(rules: Iterable[Rule], sections: Mapping[str, object | None]) -> list[Conflict]:
    """Return one record per violated rule, in the order of the rules.

    A rule is skipped if one of its sections is missing, if the section lacks the rule's first field, or if a fact
    (section `facts`, a mapping) is unknown. Any other field that a section lacks reads as None.
    """
    found = ((rule, _values(rule, sections)) for rule in rules)
    violated = (None if values is None else check_rule(rule, values) for rule, values in found)
    return [conflict for conflict in violated if conflict is not None]


def check_rule(rule: Rule, values: Sequence[object]) -> Conflict | None:
    """Return a record if these values, in the order of the rule's fields, violate the rule; None otherwise."""
    message = rule.test(*values)
    if message is None:
        return None
    return Conflict(
        id=rule.id,
        severity=rule.severity,
        fields=rule.fields,
        values=dict(zip(rule.fields, values, strict=True)),
        message=message,
        why=rule.why,
        fix=rule.fix,
    )


def _values(rule: Rule, sections: Mapping[str, object | None]) -> list[object] | None:
    values = []
    for position, path in enumerate(rule.fields):
        name, _, field = path.partition(".")
        section = sections.get(name)
        if section is None or (position == 0 and field_name(section, field) is None):
            return None
        value = read_field(section, field)
        if name == "facts" and value is None:
            return None
        values.append(value)
    return values
