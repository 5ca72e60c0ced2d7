"""Merging of problems from several checks: an error is never replaced by a warning."""

from mb_config import Problem
from mb_config.preflight.problems import merge_problems


def problem(name, *fields, severity="error", origin=None):
    return Problem(
        id=name,
        severity=severity,
        fields=fields or ("train.a",),
        message="is 1",
        why="of it",
        fix="Set 2.",
        origin=origin or {},
    )


def test_an_error_replaces_a_warning_of_the_same_rule_on_the_same_field():
    warning, error = problem("V1", "train.a", severity="warning"), problem("V1", "train.a", "model.b")
    assert merge_problems([warning], [error]) == [error]
    assert merge_problems([error], [warning]) == [error]


def test_problems_of_one_rule_on_other_fields_are_all_kept():
    one, other = problem("V1", "train.a", severity="warning"), problem("V1", "train.b")
    assert merge_problems([one], [other]) == [one, other]


def test_a_repeated_problem_is_listed_once():
    assert merge_problems([problem("V1")], [problem("V1")]) == [problem("V1")]


def test_problems_that_follow_from_a_rejected_value_are_omitted():
    computed = problem("V2", origin={"train.a": "resolve: V3"})
    assert merge_problems([problem("V1")], [computed]) == [problem("V1")]
    warned = problem("V1", severity="warning")
    assert merge_problems([warned], [computed]) == [warned, computed]
