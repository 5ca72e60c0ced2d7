import operator
import os
from functools import partial
from multiprocessing import Pipe

import pytest

from mb_data.errors import WorkerError
from mb_data.text.workers import _send, map_in_order


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers):
    assert list(map_in_order(operator.neg, range(50), workers=workers)) == [-number for number in range(50)]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_at_its_position(workers):
    results = map_in_order(partial(operator.floordiv, 12), [3, 2, 0, 1], workers=workers)
    assert [next(results), next(results)] == [4, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_only_a_few_arguments_are_consumed_ahead():
    taken = iter(range(1000))
    results = map_in_order(operator.neg, taken, workers=2)
    next(results)
    assert next(taken) <= 2 * 4
    results.close()


def test_a_worker_that_exits_is_an_error():
    with pytest.raises(WorkerError, match="exited without a result"):
        list(map_in_order(os._exit, [1, 1], workers=2))


def test_a_worker_that_exits_before_it_receives_anything_is_an_error():
    here, there = Pipe()
    there.close()
    with pytest.raises(WorkerError, match="exited without a result"):
        _send(here, 1)


def test_zero_workers_are_rejected():
    with pytest.raises(ValueError, match="workers: 0"):
        list(map_in_order(operator.neg, [1], workers=0))
