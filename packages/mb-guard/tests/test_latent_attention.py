"""Faults of multi-latent attention; the right gradient is that of one rank with the same weights."""

import pytest

CASE = "case_latent_attention.py"


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_rotary_keys_get_gradients_from_the_heads_of_all_ranks(sequence_parallel, run_case):
    [alone] = run_case(CASE, "gradient_of_keys", False, None)
    first, last = run_case(CASE, "gradient_of_keys", sequence_parallel, None, ranks=2)
    assert [*first, *last] == pytest.approx(alone, rel=1e-4, abs=1e-6)
    first, last = run_case(CASE, "gradient_of_keys", sequence_parallel, "rotary-key-gradient", ranks=2)
    assert [*first, *last] != pytest.approx(alone, rel=0.05, abs=1e-6)


def test_a_softmax_scale_of_latent_attention_is_refused(run_case):
    refused, scale = run_case(CASE, "softmax_scale")[0]
    assert refused.startswith("latent-softmax-scale-ignored: ")
    assert scale == pytest.approx(8**-0.5)  # heads of 4 + 4, not the 0.5 that is set
