"""Check of a plain configuration as written, and again as resolved."""

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
    """Result of checking a plain configuration."""

    problems: Sequence[Problem]
    """Every violated rule, errors and warnings."""

    changes: Sequence[Change]
    """Changes that resolving makes; empty if the configuration was not resolved."""

    unresolved: str
    """Reason why the configuration was not resolved; empty if it was."""


def check_plain_config(
    plain: PlainConfig, rules: Sequence[RuleLike], *, facts: Mapping[str, object]
) -> PlainCheckResult:
    """Check a configuration, resolve a copy, and check the copy. `plain` is not modified.

    Args:
        plain: Result of `read_plain_config`. Communication overlap belongs to another package and is not set up.
        rules: Rules, applied twice; the second time `facts.resolved` is true.
        facts: Facts that rules read. Without `world_size`, resolving uses the smallest number of processes that holds
            the model, and only to find settings that exclude each other.
    """
    as_written = check(plain.sections(), rules, facts=facts, provenance=plain.provenance)
    world_size = facts.get("world_size")
    config, provenance = deepcopy(plain.config), Provenance(dict(plain.provenance.origins))
    unresolved = ""
    if not isinstance(world_size, int):
        unresolved = "the number of processes is not known"
    elif not plain.resolves():
        unresolved = "a section that resolving requires is not in the file"
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
    """Return True if a problem reads only sections of the file, and so holds for any number of processes."""
    return all(path.partition(".")[0] in sections for path in problem.fields)
