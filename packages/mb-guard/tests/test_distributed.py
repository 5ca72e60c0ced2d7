"""Faults of data parallelism: each is there without its correction, and absent with it."""

import pytest

from mb_guard.catalogue import find_fault
from mb_guard.fault import Settings


@pytest.mark.parametrize("fault", [None, "weak-backward-hooks"])
def test_a_model_is_freed(fault, run_case):
    assert run_case("case_distributed.py", "is_leaked", fault) == [fault is not None]


def test_fsdp_adds_up_the_gradients_of_a_group_of_one_rank(run_case):
    fault = "fsdp-accumulates-wrongly-on-one-rank"

    def error(*values):
        return run_case("case_distributed.py", "fsdp_error", *values)[0]

    for strategy in ("optim", "optim_grads", "optim_grads_params"):
        assert error(None, strategy, 0.5, None) < 1e-6
        assert error(None, strategy, 1.0, "bfloat16") < 0.01
    assert error(fault, "optim_grads_params", 0.5, None) > 0.2
    assert error(fault, "optim_grads_params", 1.0, "bfloat16") > 1


def test_fsdp_marks_sums_to_be_overwritten(run_case):
    marked = run_case("case_distributed.py", "overwritten_sums", "optim")
    assert marked == [True], "False: delete the record"
    met = find_fault("fsdp-overwrites-sums-of-gradients").met
    settings = {"use_megatron_fsdp": True, "gradient_accumulation_fusion": True}
    assert met(Settings({**settings, "data_parallel_sharding_strategy": "optim"}))
    assert not met(Settings({**settings, "data_parallel_sharding_strategy": "optim_grads"}))


def test_each_model_reduces_as_configured(run_case):
    assert run_case("case_distributed.py", "reduction_error", None, ranks=2) == [0, 0]
    wrong = run_case("case_distributed.py", "reduction_error", "fp32-reduction-of-another-model", ranks=2)
    assert min(wrong) > 0.1
