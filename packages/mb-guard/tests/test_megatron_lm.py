"""Megatron-LM's own training code; the right values are those of the command line."""


def test_the_rope_scaling_factor_reaches_the_model(run_case):
    assert run_case("case_megatron_lm.py", "factor", None) == [(True, 32.0)]
    fault = "rope-scaling-factor-ignored"
    assert run_case("case_megatron_lm.py", "factor", fault) == [(True, 8.0)]
