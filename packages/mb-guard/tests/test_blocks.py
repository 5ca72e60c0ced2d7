"""Faults of callers of layers; right are the gradients of the transformer block, and masks that are independent."""

import pytest

CASE = "case_blocks.py"


def test_a_dense_last_layer_is_normalized(run_case):
    for found in run_case(CASE, "overlapped", None, ranks=2):
        assert found < 1e-6
    for found in run_case(CASE, "overlapped", "final-norm-missing-in-overlap", ranks=2):
        assert found > 0.5


@pytest.mark.parametrize("caller", ["overlapped_masks", "hybrid_masks"])
def test_ranks_draw_different_dropout_masks(caller, run_case):
    one, other = run_case(CASE, caller, None, ranks=2)
    assert len(one) > 200
    assert sum(a == b for a, b in zip(one, other, strict=True)) / len(one) == pytest.approx(0.5, abs=0.1)
    one, other = run_case(CASE, caller, "sequence-parallel-dropout", ranks=2)
    assert one == other
