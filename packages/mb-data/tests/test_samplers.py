import tracemalloc
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_data import CyclicSampler, NotEnoughSamplesError, SingleSampler, require_global_batch
from mb_data.errors import DatasetError

PLACE = {"consumed_samples": 0, "micro_batch_size": 2, "data_parallel_rank": 0, "data_parallel_size": 1}


def single(**changes):
    return SingleSampler(**(PLACE | {"total_samples": 10} | changes))


def repeated(**changes):
    return single(repeats=True, **changes)


def cyclic(**changes):
    return CyclicSampler(**(PLACE | {"total_samples": 10, "seed": 1} | changes))


def global_order(make, *, size, steps, **position):
    """Return the samples that all ranks read, by micro-step and rank."""
    shards = [
        list(islice(make(data_parallel_rank=r, data_parallel_size=size, **position), steps))
        for r in range(size)
    ]
    return [sample for batches in zip(*shards, strict=True) for batch in batches for sample in batch]


def test_two_ranks_alternate():
    assert list(single(data_parallel_rank=0, data_parallel_size=2)) == [[0, 1], [4, 5]]
    assert list(single(data_parallel_rank=1, data_parallel_size=2)) == [[2, 3], [6, 7]]


def test_remaining_samples_are_distributed_without_drop_last():
    ranks = [
        single(total_samples=11, data_parallel_rank=r, data_parallel_size=2, drop_last=False) for r in (0, 1)
    ]
    assert [list(rank) for rank in ranks] == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9, 10]]]


def test_fewer_remaining_samples_than_ranks_are_dropped():
    ranks = [
        single(total_samples=9, data_parallel_rank=r, data_parallel_size=2, drop_last=False) for r in (0, 1)
    ]
    assert [list(rank) for rank in ranks] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_a_finished_epoch_is_empty():
    assert list(single(consumed_samples=10)) == []


def test_repeated_samples_start_again_in_their_order():
    assert list(islice(repeated(consumed_samples=27, micro_batch_size=4), 2)) == [[7, 8, 9, 0], [1, 2, 3, 4]]


def test_each_epoch_has_every_sample_in_a_different_order():
    order = global_order(cyclic, size=1, steps=15)
    passes = [order[start : start + 10] for start in (0, 10, 20)]
    assert [sorted(each) for each in passes] == [list(range(10))] * 3
    assert len(set(map(tuple, passes))) == 3


def test_the_seed_chooses_the_order():
    assert global_order(cyclic, size=1, steps=5) != global_order(cyclic, size=1, steps=5, seed=2)


@given(
    make=st.sampled_from([single, cyclic]),
    size=st.integers(1, 4),
    micro=st.integers(1, 3),
    total=st.integers(12, 40),
    consumed=st.integers(0, 12),
)
def test_the_global_order_is_the_same_for_every_data_parallel_size(make, size, micro, total, consumed):
    steps = (total - consumed) // (size * micro)
    position = {"total_samples": total, "consumed_samples": consumed}
    sharded = global_order(make, size=size, steps=steps, micro_batch_size=micro, **position)
    assert sharded == global_order(make, size=1, steps=steps * size * micro, micro_batch_size=1, **position)


@given(
    make=st.sampled_from([single, repeated, cyclic]),
    before=st.integers(1, 4),
    after=st.integers(1, 4),
    micro=st.integers(1, 3),
    stop=st.integers(0, 6),
)
def test_resuming_equals_an_uninterrupted_run(make, before, after, micro, stop):
    step = before * after * micro
    total = 300 if make is single else max(7, before * micro, after * micro)  # over the end of several passes
    complete = global_order(make, size=1, steps=10 * step, micro_batch_size=1, total_samples=total)
    position = {"micro_batch_size": micro, "total_samples": total}
    head = global_order(make, size=before, steps=stop * after, **position)
    tail = global_order(make, size=after, steps=(10 - stop) * before, consumed_samples=len(head), **position)
    assert head + tail == complete[: len(head + tail)]


@given(size=st.integers(1, 4), micro=st.integers(1, 3), total=st.integers(4, 30), keep=st.booleans())
def test_all_ranks_make_the_same_number_of_steps(size, micro, total, keep):
    total = max(total, size * micro)
    position = {"total_samples": total, "micro_batch_size": micro, "data_parallel_size": size}
    ranks = [list(single(**position, data_parallel_rank=rank, drop_last=not keep)) for rank in range(size)]
    read = sorted(sample for rank in ranks for batch in rank for sample in batch)
    assert len({len(rank) for rank in ranks}) == 1
    assert read == list(range(len(read)))
    assert total - len(read) < (size if keep else size * micro)


@pytest.mark.parametrize("make", [single, cyclic])
def test_no_samples_are_rejected(make):
    with pytest.raises(NotEnoughSamplesError):
        make(total_samples=0)


def test_less_than_one_step_is_rejected():
    with pytest.raises(NotEnoughSamplesError, match="do not fill one micro-batch"):
        single(total_samples=7, data_parallel_size=4)


def test_less_than_one_global_batch_is_rejected():
    require_global_batch(16, global_batch_size=16, drop_last=True)
    require_global_batch(12, global_batch_size=16, drop_last=False)
    with pytest.raises(NotEnoughSamplesError, match="12 samples do not fill one global batch of 16"):
        require_global_batch(12, global_batch_size=16, drop_last=True)


def test_more_consumed_samples_than_exist_are_rejected():
    with pytest.raises(DatasetError, match="11 samples are consumed, but there are only 10"):
        single(consumed_samples=11)


@pytest.mark.parametrize("make", [single, cyclic])
@pytest.mark.parametrize(
    "wrong",
    [{"micro_batch_size": 0}, {"data_parallel_rank": 1}, {"data_parallel_size": 0}, {"consumed_samples": -1}],
)
def test_impossible_positions_are_rejected(make, wrong):
    with pytest.raises(ValueError, match="Correct them"):
        make(**wrong)


@pytest.mark.parametrize("samples", [1, 5, 65_536, 65_537, 300_000])
def test_an_epoch_has_the_order_of_numpys_permutation(samples):
    """A resumed run continues in the order of the versions before, which stored the permutation in 8 bytes a sample."""
    place = {"micro_batch_size": 1, "data_parallel_rank": 0, "data_parallel_size": 1}
    epoch = 2
    batches = iter(CyclicSampler(total_samples=samples, consumed_samples=epoch * samples, seed=7, **place))
    expected = np.random.default_rng((7, epoch)).permutation(samples)[:100]
    assert [next(batches)[0] for _ in expected] == expected.tolist()


def test_an_epoch_takes_four_bytes_a_sample_also_at_its_end():
    samples = 1_000_000
    place = {"micro_batch_size": 2, "data_parallel_rank": 0, "data_parallel_size": 1}
    tracemalloc.start()
    try:
        batches = iter(CyclicSampler(total_samples=samples, consumed_samples=samples - 2, seed=7, **place))
        next(batches), next(batches)
        assert tracemalloc.get_traced_memory()[1] < 4.1 * samples
    finally:
        tracemalloc.stop()
