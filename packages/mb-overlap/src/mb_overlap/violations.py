"""Apply rules to sections that are any objects, and say what they refuse."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mb_overlap.field_access import field_name, read_field
from mb_overlap.rule import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One rule that a configuration breaks."""

    id: str
    """The rule."""
    severity: Literal["error", "warning"]
    """A warning costs speed, or is about a wish that cannot be granted; an error must not run."""
    fields: tuple[str, ...]
    """Paths that the rule reads."""
    values: Mapping[str, object]
    """Path to the value that was found there."""
    message: str
    """What is wrong, with the values."""
    why: str
    """Reason for the rule."""
    fix: str
    """What to do."""

    def __str__(self) -> str:
        return f"[{self.id}] {self.fields[0]}: {self.message}, because {self.why}. {self.fix}"


def check_rules(rules: Iterable[Rule], sections: Mapping[str, object | None]) -> list[Conflict]:
    """Return a record for each rule that is broken, in the order of the rules.

    A rule is left out where one of its sections is not there, where the section lacks its first field, or where an
    outside fact (section `facts`, a mapping) is not known. Another field that a section lacks reads as None.
    """
    found = ((rule, _values(rule, sections)) for rule in rules)
    broken = (None if values is None else check_rule(rule, values) for rule, values in found)
    return [conflict for conflict in broken if conflict is not None]


def check_rule(rule: Rule, values: Sequence[object]) -> Conflict | None:
    """Return a record if these values, in the order of its fields, break the rule."""
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
