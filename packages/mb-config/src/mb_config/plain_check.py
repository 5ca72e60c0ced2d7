"""What can be said about a plain configuration: rules on what was asked for, resolving, rules on what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from mb_config.plain_config import PlainConfig
from mb_config.plan.errors import PlanError
from mb_config.plan.model_shape import smallest_world
from mb_config.problem_merging import merge_problems
from mb_config.problems import ConfigError, Problem, RuleLike, check
from mb_config.provenance import Provenance
from mb_config.resolve import Change, runtime_config_update


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCheckResult:
    """The result."""

    problems: Sequence[Problem]
    """Every broken rule, errors and warnings."""

    changes: Sequence[Change]
    """What resolving would set; none where it was not done."""

    unresolved: str
    """Why it was not done; empty where it was."""


def check_plain_config(
    plain: PlainConfig, rules: Sequence[RuleLike], *, facts: Mapping[str, object]
) -> PlainCheckResult:
    """Check, resolve a copy, and check that. `plain` is not changed.

    Args:
        plain: As `read_plain` returns it. Overlap is the affair of another package: it is not set up.
        rules: Asked twice; the second time `facts.resolved` is true.
        facts: What rules may ask. Without `world_size`, resolving is tried with the fewest processes that hold the
            model, only to find settings that exclude each other.
    """
    as_written = check(plain.sections(), rules, facts=facts, provenance=plain.provenance)
    world_size = facts.get("world_size")
    config, provenance = deepcopy(plain.config), Provenance(dict(plain.provenance.origins))
    unresolved = ""
    if not isinstance(world_size, int):
        unresolved = "the number of processes is not known"
    elif not plain.resolves():
        unresolved = "a section that it starts from is not in the file"
    try:
        size = world_size if isinstance(world_size, int) else smallest_world(config.model)
        changes = runtime_config_update(config, world_size=size, provenance=provenance, facts=facts, rules=())
    except PlanError:
        return PlainCheckResult(problems=as_written, changes=(), unresolved=unresolved)
    except ConfigError as error:
        if unresolved:
            found = [problem for problem in error.problems if _reads_only(problem, plain.sections())]
        else:
            found = list(error.problems)
        unresolved = unresolved or "settings exclude each other"
        return PlainCheckResult(problems=merge_problems(as_written, found), changes=(), unresolved=unresolved)
    if unresolved:
        return PlainCheckResult(problems=as_written, changes=(), unresolved=unresolved)
    resolved = {name: getattr(config, name) for name in plain.sections()}
    as_resolved = check(resolved, rules, facts={**facts, "resolved": True}, provenance=provenance)
    errors = [problem for problem in as_resolved if problem.severity == "error"]
    return PlainCheckResult(problems=merge_problems(as_written, errors), changes=changes, unresolved="")


def _reads_only(problem: Problem, sections: Mapping[str, object]) -> bool:
    """Return True if a problem follows from sections that are in the file, for any number of processes."""
    return all(path.partition(".")[0] in sections for path in problem.fields)
