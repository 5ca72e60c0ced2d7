"""Application of rules to sections. All problems are reported together, with secrets masked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Protocol

from mb_config.errors import ConfigurationError
from mb_schema import rules as _rules
from mb_schema.rules import NOTHING, Problem, Rule, RuleError, explain
from mb_schema.value_types import reject_wrong_types

_WEIGHT = {"warning": 0, "error": 1}


class OriginLookup(Protocol):
    """Lookup of the origin of a value."""

    def origin(self, path: str) -> str:
        """Return the origin, such as `run.yaml:12`."""


class Problems(list[Problem]):
    """List of problems, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """Return a table: severity and rule, problem, reason and fix. Without colours, for light and dark notebooks."""
        rows = "".join(
            f'<tr><td style="text-align:left">{problem.severity} <code>{escape(problem.id)}</code></td>'
            f'<td style="text-align:left"><code>{escape(problem.fields[0])}</code>: {escape(problem.message)}<br>'
            f"<small>because {escape(problem.why)}. {escape(problem.fix)}</small></td></tr>"
            for problem in self
        )
        return f"<table><tbody>{rows}</tbody></table>" if rows else "<p>No problems.</p>"


class ConfigError(ConfigurationError, RuleError):
    """An invalid configuration. `problems` contains every problem; the text lists them all."""


def check(
    sections: Mapping[str, object],
    rules: Iterable[Rule],
    *,
    facts: Mapping[str, object] = NOTHING,
    provenance: OriginLookup | None = None,
) -> list[Problem]:
    """Return every problem, in the order of the rules. Does not modify anything.

    Args:
        sections: Section name to section: an object with attributes, or a mapping.
        rules: Rules. A rule is applied if every section that it reads is present and its first field exists. Other
            fields that a section does not have are None. A rule that reads an unknown fact is skipped.
        facts: Values that no section contains, which rules read as `facts.<name>`: `world_size`, `env`.
        provenance: Origins of the values.
    """
    origin = None if provenance is None else provenance.origin
    found = _rules.check(sections, rules, facts=facts, origin=origin)
    return Problems(found)


def reject(
    sections: Mapping[str, object], rules: Iterable[Rule], *, facts: Mapping[str, object] = NOTHING
) -> None:
    """Raise `ConfigError` if there are errors. Warnings are ignored.

    Raises:
        ConfigError: If rules are violated; contains every error.
        FieldTypeError: If a section has values of a wrong type.
    """
    for name, section in sections.items():
        if getattr(section, "checks_types", False) is True:
            reject_wrong_types(section, path=name)
    errors = [problem for problem in check(sections, rules, facts=facts) if problem.severity == "error"]
    if errors:
        raise ConfigError(errors)


def origin_texts(problem: Problem) -> list[str]:
    """Return the origin of each value, such as "ddp.overlap_grad_reduce from run.yaml:12".

    Defaults are left out, except the one of two fields in conflict.
    """
    known = {path: origin for path, origin in problem.origin.items() if origin != "default"}
    shown = problem.origin if known and len(problem.origin) == 2 else known
    return [
        f"{path} from {'the default' if origin == 'default' else origin}" for path, origin in shown.items()
    ]


def explain_equivalent(found: tuple[str, Collection[str]] | None, rules: Iterable[Rule]) -> str | None:
    """Return a text about a constraint of another program, followed by the rules that are equivalent to it.

    `found` is the text with the ids of the rules; None if the constraint is not known, and None is returned.
    """
    if found is None:
        return None
    text, ids = found
    return "\n\n".join([text, *(explain(rule) for rule in rules if rule.id in ids)])


def concerns(item: Problem | Rule, path: str) -> bool:
    """Return whether a problem or a rule reads a field, its section or a part of the field."""
    path = path.partition("[")[0]  # an item of a list concerns the entire list
    return any(f"{one}.".startswith(f"{path}.") or f"{path}.".startswith(f"{one}.") for one in item.fields)


def merge_problems(as_written: Sequence[Problem], as_resolved: Sequence[Problem]) -> list[Problem]:
    """Return the problems of a configuration as written and as resolved, each once.

    A repeated problem has the id of another one and shares a field with it. The more severe of the two is kept: an
    error replaces a warning, and a warning never hides an error. Errors of values that resolving computed are
    omitted if the configuration as written already has errors.
    """
    rejected = any(problem.severity == "error" for problem in as_written)
    later = [
        problem
        for problem in as_resolved
        if not any(_covers(earlier, problem) for earlier in as_written)
        and not (rejected and _follows(problem))
    ]
    kept = [problem for problem in as_written if not any(_covers(error, problem) for error in later)]
    return [*kept, *later]


def _covers(one: Problem, other: Problem) -> bool:
    same = one.id == other.id and not set(one.fields).isdisjoint(other.fields)
    return same and _WEIGHT[one.severity] >= _WEIGHT[other.severity]


def _follows(problem: Problem) -> bool:
    """Return True if resolving computed the first value of the problem."""
    return problem.origin.get(problem.fields[0], "").startswith("resolve")
