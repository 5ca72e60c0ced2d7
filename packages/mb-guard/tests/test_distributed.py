"""Faults of data parallelism: each is there without its correction, and absent with it."""

import pytest


@pytest.mark.parametrize("fault", [None, "weak-backward-hooks"])
def test_a_model_is_freed(fault, run_case):
    assert run_case("case_distributed.py", "is_leaked", fault) == [fault is not None]


def test_fsdp_scales_a_sum_of_microbatches_again(run_case):
    def error(strategy, microbatches):
        return run_case("case_distributed.py", "fsdp_scaling_error", strategy, microbatches)[0]

    assert error("optim_grads_params", 1) == error("optim", 2) == 0
    assert error("optim_grads_params", 2) > 0.2, "0: delete the record"


def test_each_model_reduces_as_configured(run_case):
    assert run_case("case_distributed.py", "reduction_error", None, ranks=2) == [0, 0]
    wrong = run_case("case_distributed.py", "reduction_error", "fp32-reduction-of-another-model", ranks=2)
    assert min(wrong) > 0.1
