"""Faults of selective recomputation; the right gradients are those without it."""

CASE = "case_recomputation.py"


def test_discarded_outputs_are_recomputed_without_transformer_engine(run_case):
    assert run_case(CASE, "without_transformer_engine", None) == [[True, True, True]]
    [error] = run_case(CASE, "without_transformer_engine", "recomputed-norms-need-transformer-engine")
    assert error == "name 'FP8GlobalStateManager' is not defined"


def test_discarded_outputs_are_restored_without_a_compiler(run_case):
    assert run_case(CASE, "without_compiler", None) == [[True, True, True]]
    [error] = run_case(CASE, "without_compiler", "recomputation-needs-a-compiler")
    assert error == "Ninja is required to load C++ extensions"
