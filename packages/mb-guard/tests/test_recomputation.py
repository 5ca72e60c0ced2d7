"""Faults of recomputation; right are the gradients and random numbers without it."""

import pytest

from mb_guard.catalogue import find_fault
from mb_guard.fault import Settings

CASE = "case_recomputation.py"


def test_discarded_outputs_are_recomputed_without_transformer_engine(run_case):
    assert run_case(CASE, "without_transformer_engine", None) == [[True, True, True]]
    [error] = run_case(CASE, "without_transformer_engine", "recomputed-norms-need-transformer-engine")
    assert error == "name 'FP8GlobalStateManager' is not defined"


def test_discarded_outputs_are_restored_without_a_compiler(run_case):
    assert run_case(CASE, "without_compiler", None) == [[True, True, True]]
    [error] = run_case(CASE, "without_compiler", "recomputation-needs-a-compiler")
    assert error == "Ninja is required to load C++ extensions"


@pytest.mark.parametrize("graphs", [False, True])
def test_recomputation_draws_the_same_numbers(graphs, run_case):
    [(forward, again, later)] = run_case(CASE, "numbers", None, graphs, True)
    [(right, _, right_later)] = run_case(CASE, "numbers", None, graphs, False)
    assert again == forward == right
    assert later == right_later
    [(_, wrong, _)] = run_case(CASE, "numbers", "recomputed-random-states", graphs, True)
    assert wrong != right


def test_a_returned_input_is_freed(run_case):
    assert run_case(CASE, "size_of_a_returned_input") == [0], "64: delete the record"
    met = find_fault("fused-residual-freed").met
    settings = {"fused_residual_rmsnorm": True, "recompute_granularity": "selective"}
    assert met(Settings({**settings, "recompute_modules": ["core_attn", "layernorm"]}))
    assert not met(Settings({**settings, "recompute_modules": ["core_attn"]}))
