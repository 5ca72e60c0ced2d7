"""Faults of context parallelism: each is there without its correction, and absent with it."""

import pytest

from mb_guard.fault import Settings
from mb_guard.faults.context_parallel import FAULTS


@pytest.mark.parametrize("tokens", [16, 4, 1])
def test_a_mask_on_one_rank(tokens, run_case):
    right = run_case("case_context_parallel.py", "masked", None, tokens, ranks=2)
    wrong = run_case("case_context_parallel.py", "masked", "context-parallel-mean", tokens, ranks=2)
    assert right == [(pytest.approx(1, abs=1e-5), pytest.approx(0, abs=1e-5))] * 2
    assert wrong[0][0] == pytest.approx(1 if tokens == 16 else 0.5, abs=1e-5)


def test_ranks_draw_the_same_dropout_masks(run_case):
    one, other = run_case("case_context_parallel.py", "dropout_masks", ranks=2)
    assert one == other, "corrected upstream: set the bound of context-parallel-dropout"
    [fault] = [each for each in FAULTS if each.id == "context-parallel-dropout"]
    assert fault.met(Settings({"hidden_dropout": 0.1, "context_parallel_size": 2}))
    assert not fault.met(Settings({"hidden_dropout": 0.1, "context_parallel_size": 1}))
    assert not fault.met(Settings({"hidden_dropout": 0.0, "context_parallel_size": 2}))
