"""Merging of problems from several checks of one configuration."""

from __future__ import annotations

from collections.abc import Sequence

from mb_schema.rules import Problem

_WEIGHT = {"warning": 0, "error": 1}


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
