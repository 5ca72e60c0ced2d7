"""Commands `explain`, which prints one rule with its examples, and `rules`, which lists them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from mb_config.cli.listing import counted
from mb_config.cli.options import RuleFilter
from mb_config.errors import ConfigReadError
from mb_config.overrides.registration import RecipeTable, Registry
from mb_config.rules import RULES
from mb_schema.exit_codes import DONE, FAILURE
from mb_schema.rules import Rule
from mb_schema.rules import explain as explanation


class UnknownRuleError(ConfigReadError, LookupError):
    """Unknown id of a rule."""


class UnknownPackageError(ConfigReadError, LookupError):
    """Name of a package that has no rules."""


PROGRAM = "mb-config"
"""Name of the program of this package."""

REGISTRY = Registry(recipes=RecipeTable({}))
"""Rules of the modules that the option --import of the program `mb-config` names."""


def rules_by_package() -> dict[str, Sequence[Rule]]:
    """Return the rules of this package, and those of the modules that the user has imported."""
    return {PROGRAM: RULES, **REGISTRY.rules_by_package}


def explain(name: str) -> int:
    """Print a rule of this package or of a module of the user; see `print_explanation`.

    Raises:
        UnknownRuleError: There is no such rule.
    """
    return print_explanation(name, rules_by_package(), program=PROGRAM)


def print_explanation(name: str, owners: Mapping[str, Sequence[Rule]], *, program: str) -> int:
    """Print a rule, its reason, an example that it rejects and one that passes. Return the exit code 0.

    Args:
        name: Id of the rule, in upper or lower case.
        owners: Package to its rules.
        program: Name of the program, for the message.

    Raises:
        UnknownRuleError: There is no such rule.
    """
    known = {rule.id.lower(): rule for rules in owners.values() for rule in rules}
    rule = known.get(name.lower())
    if rule is None:
        near = get_close_matches(name.lower(), known, n=3)
        hint = f"Nearest: {', '.join(known[key].id for key in near)}." if near else "Rules look like V242."
        raise UnknownRuleError(f"{name}: is not a rule. {hint} `{program} rules` lists all.")
    print(explanation(rule))
    return DONE


def rules(chosen: RuleFilter, *, as_json: bool) -> int:
    """Print the list of the rules of this package; see `print_rules`."""
    return print_rules(rules_by_package(), chosen, as_json=as_json, program=PROGRAM)


def print_rules(
    owners: Mapping[str, Sequence[Rule]], chosen: RuleFilter, *, as_json: bool, program: str
) -> int:
    """Print the list of rules: id, severity, first field and reason. Return the exit code: 1 if no rule matches.

    Args:
        owners: Package to its rules.
        chosen: Selection; a text is searched in ids, fields, reasons and fixes, ignoring case.
        as_json: Print a list of JSON objects.
        program: Name of the program, for remarks.

    Raises:
        UnknownPackageError: No rules are of this package.
    """
    selected = [
        (owner, rule)
        for owner, rule in _in_package(owners, chosen.package)
        if (chosen.of_field is None or _reads(rule, chosen.of_field))
        and (chosen.text is None or _contains(rule, chosen.text))
    ]
    if as_json:
        print(json.dumps([_to_dict(owner, rule) for owner, rule in selected], indent=2))
    if not selected:
        print(f"no rule matches; `{program} rules` lists all", file=sys.stderr)
        return FAILURE
    if as_json:
        return DONE
    width = max(len(rule.id) for _, rule in selected)
    for _, rule in selected:
        print(f"{rule.id:<{width}}  {rule.severity:<7}  {rule.fields[0].removeprefix('facts.')}: {rule.why}")
    print(f"{counted(len(selected), 'rule')}; {program} explain ID shows one with examples", file=sys.stderr)
    return DONE


def _in_package(owners: Mapping[str, Sequence[Rule]], package: str | None) -> Iterator[tuple[str, Rule]]:
    """Yield each package with each of its rules; only those of `package` unless it is None.

    Raises:
        UnknownPackageError: No rules are of this package.
    """
    if package is not None and package not in owners:
        raise UnknownPackageError(f"{package}: has no rules. Packages with rules: {', '.join(owners)}.")
    for owner in owners if package is None else (package,):
        yield from ((owner, rule) for rule in owners[owner])


def _reads(rule: Rule, field: str) -> bool:
    """Return whether a rule reads a field, a field of the section of this name, or the fact of this name."""
    return any(f"{path}.".startswith(f"{field}.") or path == f"facts.{field}" for path in rule.fields)


def _contains(rule: Rule, text: str) -> bool:
    return any(text.lower() in part.lower() for part in (rule.id, *rule.fields, rule.why, rule.fix))


def _to_dict(owner: str, rule: Rule) -> dict[str, object]:
    return {
        "id": rule.id,
        "package": owner,
        "severity": rule.severity,
        "fields": list(rule.fields),
        "why": rule.why,
        "fix": rule.fix,
    }
