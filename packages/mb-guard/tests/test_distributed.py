"""Faults of data parallelism: each is there without its correction, and absent with it."""

import pytest


@pytest.mark.parametrize("fault", [None, "weak-backward-hooks"])
def test_a_model_is_freed(fault, run_case):
    assert run_case("case_distributed.py", "is_leaked", fault) == [fault is not None]
