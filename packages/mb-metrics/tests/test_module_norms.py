"""Norms over the modules of a model, on one rank with both modules and on two ranks with one module each."""

import math
from pathlib import Path

import pytest

mb_host = pytest.importorskip("mb_host")

RANKS = Path(__file__).with_name("module_norm_ranks.py")

EXPECTED = (
    math.sqrt(13),
    {
        "l2_norm/grad/module.language_model.weight": 2.0,
        "l2_norm/grad/submodules.vision.weight": 3.0,
        "l2_norm/grad/global": math.sqrt(13),
    },
)


def test_norms_over_modules_of_one_rank():
    found = mb_host.run_ranks(mb_host.function_in(RANKS, "norms_of"), 1, ["text", "image"])
    assert found == [EXPECTED]


def test_norms_over_modules_on_separate_ranks():
    found = mb_host.run_ranks(mb_host.function_in(RANKS, "norms_of_rank"), 2)
    assert found == [EXPECTED, EXPECTED]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_norm_that_is_nan_on_one_rank_is_the_norm_of_all(rank):
    found = mb_host.run_ranks(mb_host.function_in(RANKS, "nan_norm_of_rank"), 2, rank)
    assert found == [(True, True)] * 2
