from itertools import islice

import pytest
import torch

from mb_data import DataloaderConfig, build_data_iterator
from mb_data.errors import SampleError


class Numbers(torch.utils.data.Dataset):
    """Dataset whose sample n is n."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"tokens": torch.tensor([index])}


def iterate(*, steps=None, size=12, rank=0, ranks=1, consumed=0, worker_init_fn=None, **config):
    iterator = build_data_iterator(
        Numbers(size),
        config=DataloaderConfig(**({"num_workers": 0} | config)),
        consumed_samples=consumed,
        micro_batch_size=2,
        data_parallel_rank=rank,
        data_parallel_size=ranks,
        worker_init_fn=worker_init_fn,
    )
    return [batch["tokens"].flatten().tolist() for batch in islice(iterator, steps)]


def test_one_epoch_from_a_position():
    assert iterate(consumed=6) == [[6, 7], [8, 9], [10, 11]]


def test_the_default_type_is_single():
    assert iterate() == iterate(dataloader_type="single")


def test_the_cyclic_order_resumes_at_its_position():
    complete = iterate(dataloader_type="cyclic", steps=20)
    assert iterate(dataloader_type="cyclic", steps=12, consumed=16) == complete[8:]


def refuse_to_start(worker):
    raise RuntimeError(f"worker {worker} refuses")


def test_workers_keep_the_order_and_run_the_init_function():
    assert iterate(num_workers=2, rank=1, ranks=2) == iterate(rank=1, ranks=2) == [[2, 3], [6, 7], [10, 11]]
    with pytest.raises(RuntimeError, match="worker 0 refuses"):
        iterate(num_workers=1, worker_init_fn=refuse_to_start)


def test_an_external_loader_is_the_iterable_itself():
    batches = [{"tokens": torch.ones(2, 4)}]
    iterator = build_data_iterator(
        batches,
        config=DataloaderConfig(dataloader_type="external"),
        consumed_samples=0,
        micro_batch_size=2,
        data_parallel_rank=0,
        data_parallel_size=1,
    )
    assert next(iterator) is batches[0]


def test_torch_random_numbers_are_not_consumed():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    iterate(dataloader_type="cyclic", steps=2)
    assert torch.rand(1) == expected


def test_an_unsupported_type_is_rejected():
    with pytest.raises(ValueError, match="'batch' with global_batch_size=None"):
        iterate(dataloader_type="batch")


class FailingDataset:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise type("MadeWhenItIsUsed", (RuntimeError,), {})("no such object")


def test_an_error_of_a_worker_that_cannot_be_pickled_reaches_the_caller():
    iterator = build_data_iterator(
        FailingDataset(),
        config=DataloaderConfig(num_workers=1),
        consumed_samples=0,
        micro_batch_size=2,
        data_parallel_rank=0,
        data_parallel_size=1,
    )
    with pytest.raises(SampleError, match=r"sample 0 of the data: MadeWhenItIsUsed: no such object"):
        next(iterator)
