"""Commands `explain` and `rules`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from difflib import get_close_matches

from mb_config.cli.listing import counted
from mb_config.cli.program import ConfigProgram
from mb_config.errors import ConfigReadError
from mb_config.preflight.problems import RuleLike
from mb_config.preflight.problems import explain as explanation
from mb_schema.exit_codes import DONE, FAILURE


class UnknownRuleError(ConfigReadError, LookupError):
    """Unknown id of a rule."""

    __str__ = ConfigReadError.__str__


class UnknownPackageError(ConfigReadError, LookupError):
    """Name of a package that has no rules."""

    __str__ = ConfigReadError.__str__


def explain(program: ConfigProgram, name: str) -> int:
    """Print a rule, its reason, an example that it rejects and one that passes.

    Raises:
        UnknownRuleError: There is no such rule.
    """
    known = {rule.id.lower(): rule for rule in program.rules}
    rule = known.get(name.lower())
    text = program.explain_other(name) if rule is None else explanation(rule)
    if text is None:
        near = get_close_matches(name.lower(), known, n=3)
        hint = f"Nearest: {', '.join(known[key].id for key in near)}." if near else "Rules look like V242."
        raise UnknownRuleError(f"{name}: is not a rule. {hint} `{program.name} rules` lists all.")
    print(text)
    return DONE


def rules(
    program: ConfigProgram, *, package: str | None, field: str | None, text: str | None, as_json: bool
) -> int:
    """Print the catalogue of rules: id, severity, first field and reason. Return 1 if no rule matches.

    Args:
        program: Rules by package.
        package: Only the rules of this package.
        field: Only rules that read this field, section or fact, such as `train.micro_batch_size` or `train`.
        text: Only rules with this text in their id, fields, reason or fix, in any case.
        as_json: Print a list of JSON objects.

    Raises:
        UnknownPackageError: No rules are of this package.
    """
    found = [
        (owner, rule)
        for owner, rule in _in_package(program, package)
        if (field is None or _reads(rule, field)) and (text is None or _contains(rule, text))
    ]
    if as_json:
        print(json.dumps([_to_dict(owner, rule) for owner, rule in found], indent=2))
    if not found:
        print(f"no rule matches; `{program.name} rules` lists all", file=sys.stderr)
        return FAILURE
    if as_json:
        return DONE
    width = max((len(rule.id) for _, rule in found), default=0)
    for _, rule in found:
        print(f"{rule.id:<{width}}  {rule.severity:<7}  {rule.fields[0].removeprefix('facts.')}: {rule.why}")
    print(
        f"{counted(len(found), 'rule')}; {program.name} explain ID shows one with examples", file=sys.stderr
    )
    return DONE


def _in_package(program: ConfigProgram, package: str | None) -> Iterator[tuple[str, RuleLike]]:
    owners = program.rules_by_package
    if package is not None and package not in owners:
        raise UnknownPackageError(f"{package}: has no rules. Packages with rules: {', '.join(owners)}.")
    for owner in owners if package is None else (package,):
        for rule in owners[owner]:
            yield owner, rule


def _reads(rule: RuleLike, field: str) -> bool:
    return any(f"{path}.".startswith(f"{field}.") or path == f"facts.{field}" for path in rule.fields)


def _contains(rule: RuleLike, text: str) -> bool:
    return any(text.lower() in part.lower() for part in (rule.id, *rule.fields, rule.why, rule.fix))


def _to_dict(owner: str, rule: RuleLike) -> dict[str, object]:
    return {
        "id": rule.id,
        "package": owner,
        "severity": rule.severity,
        "fields": list(rule.fields),
        "why": rule.why,
        "fix": rule.fix,
    }
