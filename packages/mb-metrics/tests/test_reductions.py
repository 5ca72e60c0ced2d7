import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from mb_metrics import (  # noqa: E402
    logical_and_across_model_parallel_group,
    reduce_max_memory_across_pp_group,
    reduce_max_stat_across_model_parallel_group,
)


@pytest.fixture
def on_ranks(four_ranks):
    mb_host = pytest.importorskip("mb_host")

    def run(name, *arguments):
        return four_ranks.run(
            mb_host.function_in(Path(__file__).with_name("reduction_ranks.py"), name), *arguments
        )

    return run


def test_the_largest_number_wins_and_no_number_is_taken_for_a_mark(on_ranks):
    rows = [
        [None, None, None, None],
        [None, -1.0, None, -3.0],  # a sentinel of -1.0 for "none" would lose this value
        [0.5, None, torch.tensor(2.5), 1.0],
        [-math.inf, None, None, None],
        [1.0, math.nan, math.inf, None],
    ]
    for found in on_ranks("reduce_stats", rows):
        assert found[:4] == [None, -1.0, 2.5, -math.inf]
        assert math.isnan(found[4])


def test_the_and_is_false_if_one_rank_is_false(on_ranks):
    numpy_like, truth = torch.tensor(True), True
    rows = [[truth, 1, numpy_like, "yes"], [truth, truth, False, truth]]
    assert on_ranks("agree", rows) == [[True, False]] * 4


def test_alone_there_is_nothing_to_reduce():
    assert reduce_max_stat_across_model_parallel_group(torch.tensor(2.0), None) == 2.0
    assert reduce_max_stat_across_model_parallel_group(None, None) is None
    assert logical_and_across_model_parallel_group(torch.tensor(True), None) is True
    assert reduce_max_memory_across_pp_group({"gigabytes": 1.5}, None) == {"gigabytes": 1.5}


def test_memory_is_the_largest_of_all_stages_and_counts_stay_whole(on_ranks):
    reports = [{"mem-max-allocated-gigabytes": 10.5 - rank, "mem-alloc-retries": rank} for rank in range(4)]
    for found in on_ranks("largest_memory", reports):
        assert found == {"mem-max-allocated-gigabytes": 10.5, "mem-alloc-retries": 3}
        assert isinstance(found["mem-alloc-retries"], int)


def test_dtensors_count_once_however_they_are_spread(on_ranks):
    for found in on_ranks("dtensor_norms"):
        assert found["spread"] == pytest.approx(found["wanted"], rel=1e-6)
        assert found["mixed"] == pytest.approx(found["mixed wanted"], rel=1e-6)
        assert "holds partial sums" in found["error"]
