"""Every rule on its two examples, and the truth table of the point-to-point modes."""

import pytest

from mb_overlap import RULES
from mb_overlap.rules.pipeline import choose_p2p_comm, p2p_comm_problem


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_rejects_and_accepts_its_examples(rule):
    assert {*rule.fails, *rule.passes} <= {*rule.fields}
    assert isinstance(rule.message(rule.fails), str)
    assert rule.message(rule.passes) is None


def test_check_returns_problem_reason_and_fix():
    (rule,) = (rule for rule in RULES if rule.id == "O02")
    problem = rule.check({"comm_overlap.tp_comm_overlap": True, "model.tensor_model_parallel_size": 1})
    assert problem.sentence == (
        "needs tensor parallelism (tp=1), because a single rank has no tensor-parallel communication to hide. "
        "Set model.tensor_model_parallel_size=2 or more, or comm_overlap.tp_comm_overlap=false."
    )


def test_rule_passes_if_its_values_are_unknown():
    rules = {rule.id: rule for rule in RULES}
    assert rules["O04"].message({"comm_overlap.tp_comm_overlap": True}) is None
    assert rules["O05M"].message(rules["O05M"].fails | {"facts.resolved": False}) is None
    assert rules["O14"].message({"facts.world_size": 8, "model.tensor_model_parallel_size": 2}) is None


@pytest.mark.parametrize(
    ("pp", "vp", "requests", "chosen"),
    [
        (1, None, (None, None), (False, False)),
        (1, 2, (None, None), (False, False)),
        (2, None, (None, None), (False, True)),
        (2, 1, (None, None), (False, True)),
        (2, 2, (None, None), (True, False)),
        (4, 2, (None, None), (True, False)),
        (4, 2, (False, None), (False, False)),
        (4, 2, (None, True), (False, True)),
        (4, None, (None, False), (False, False)),
    ],
)
def test_schedule_determines_the_point_to_point_mode(pp, vp, requests, chosen):
    assert choose_p2p_comm(pp, vp, *requests) == chosen
    assert p2p_comm_problem(pp, vp, *chosen) is None


@pytest.mark.parametrize(
    ("pp", "vp", "overlap", "batch", "problem"),
    [
        (2, None, True, False, "the plain pipeline schedule cannot overlap"),
        (4, 1, True, False, "the plain pipeline schedule cannot overlap"),
        (4, 2, True, True, "sends cannot be both overlapped and batched"),
        (2, 2, False, True, "two interleaved stages with batched sends train incorrectly"),
    ],
)
def test_point_to_point_mode_that_a_schedule_does_not_support(pp, vp, overlap, batch, problem):
    values = f"(pp={pp}, vp={vp}, overlap_p2p_comm={overlap}, batch_p2p_comm={batch})"
    assert p2p_comm_problem(pp, vp, overlap, batch) == f"{problem} {values}"
