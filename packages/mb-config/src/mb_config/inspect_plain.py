"""What can be said about a plain configuration: rules on what was asked for, resolving, rules on what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from mb_config.plain import PlainConfig
from mb_config.problems import ConfigError, Problem, RuleLike, check
from mb_config.provenance import Provenance
from mb_config.resolve import Change, runtime_config_update


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFindings:
    """The result."""

    problems: Sequence[Problem]
    """Every broken rule, errors and warnings."""

    changes: Sequence[Change]
    """What resolving would set; none where it was not done."""

    unresolved: str
    """Why it was not done; empty where it was."""


def inspect_plain(
    plain: PlainConfig, rules: Sequence[RuleLike], *, facts: Mapping[str, object]
) -> PlainFindings:
    """Check, resolve a copy, and check that. `plain` is not changed.

    Args:
        plain: As `read_plain` returns it. Overlap is the affair of another package: it is not set up.
        rules: Asked twice; the second time `facts.resolved` is true.
        facts: What rules may ask; resolving needs `world_size`.
    """
    asked = check(plain.sections(), rules, facts=facts, provenance=plain.provenance)
    world_size = facts.get("world_size")
    if not isinstance(world_size, int):
        return PlainFindings(problems=asked, changes=(), unresolved="the number of processes is not known")
    if not plain.resolves():
        missing = "a section that it starts from is not in the file"
        return PlainFindings(problems=asked, changes=(), unresolved=missing)
    config, provenance = deepcopy(plain.config), Provenance(dict(plain.provenance.origins))
    try:
        changes = runtime_config_update(config, world_size=world_size, provenance=provenance, facts=facts)
    except ConfigError as error:
        problems = [*asked, *_new(error.problems, asked)]
        return PlainFindings(problems=problems, changes=(), unresolved="wishes exclude each other")
    resolved = {name: getattr(config, name) for name in plain.sections()}
    later = check(resolved, rules, facts={**facts, "resolved": True}, provenance=provenance)
    errors = [problem for problem in later if problem.severity == "error"]
    return PlainFindings(problems=[*asked, *_new(errors, asked)], changes=changes, unresolved="")


def _new(later: Iterable[Problem], asked: Sequence[Problem]) -> list[Problem]:
    """What was not said already, and does not only follow from a value that is refused."""
    seen = {problem.id for problem in asked}
    refused = any(problem.severity == "error" for problem in asked)
    return [
        problem
        for problem in later
        if problem.id not in seen
        and not (refused and problem.origin.get(problem.fields[0], "").startswith("resolve"))
    ]
