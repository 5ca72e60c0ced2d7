"""Iterator over the batches of a dataset, based on `torch.utils.data.DataLoader`."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from mb_data.config import DataloaderConfig
from mb_data.errors import SampleError
from mb_data.loading.samplers import BatchSampler, CyclicSampler, RankSampler, SingleSampler


def build_data_iterator(  # noqa: PLR0913 (keyword-only numbers that define the position in the data)
    dataset: Any,
    *,
    config: DataloaderConfig,
    consumed_samples: int,
    micro_batch_size: int,
    data_parallel_rank: int,
    data_parallel_size: int,
    seed: int = 1234,
    global_batch_size: int | None = None,
    repeats: bool = False,
    worker_init_fn: Callable[[int], None] | None = None,
) -> Iterator[dict[str, torch.Tensor]]:
    """Return an iterator over the micro-batches of one data-parallel rank, starting at a position.

    Not collective. Does not use torch's global random number generator.

    Args:
        dataset: Map-style dataset, or with `dataloader_type="external"` an iterable of finished batches. A method
            `collate` replaces the default collation; a method `length` is the sort key within global batches.
        config: The dataset section. `dataloader_type` None means `single`.
        consumed_samples: Position in the global order: number of samples that all ranks together have consumed.
        micro_batch_size: Sequences in one batch of one rank.
        data_parallel_rank: Data-parallel rank of this process.
        data_parallel_size: Number of ranks that share the data.
        seed: Seed of the cyclic order and of the random number generators of the workers.
        global_batch_size: Sequences of one step. Required by the loader type `batch`.
        repeats: Continue with the first sample after the last one.
        worker_init_fn: Called with the worker id at the start of each worker process.

    Returns:
        Iterator over dictionaries of tensors of shape [micro_batch_size, ...]. `single` ends after one epoch (without
        `drop_last`, with a smaller batch) unless it `repeats`; `cyclic` never ends.

    Raises:
        ValueError: The loader type is not supported, or sizes, rank and position are inconsistent.
        NotEnoughSamplesError: The dataset is too small.
    """
    if config.dataloader_type == "external":
        return iter(dataset)
    sampler = rank_sampler(
        config,
        dataset,
        seed=seed,
        global_batch_size=global_batch_size,
        repeats=repeats,
        consumed_samples=consumed_samples,
        micro_batch_size=micro_batch_size,
        data_parallel_rank=data_parallel_rank,
        data_parallel_size=data_parallel_size,
    )
    return iter(
        DataLoader(
            SamplesOfWorkers(dataset) if config.num_workers else dataset,
            batch_sampler=sampler,
            collate_fn=getattr(dataset, "collate", None),
            num_workers=config.num_workers,
            pin_memory=config.pin_memory and torch.cuda.is_available(),
            persistent_workers=config.persistent_workers and config.num_workers > 0,
            worker_init_fn=worker_init_fn,
            # without one, DataLoader draws the seed of its workers from the generator that the model draws from
            generator=torch.Generator().manual_seed(seed),
        )
    )


def stop_workers(iterator: object) -> None:
    """Stop the worker processes of an iterator of a `DataLoader`; no effect on any other iterator.

    Without it they end when the iterator is deleted. If that is done by Python's collection of reference cycles, as
    after an exception whose frames refer to the iterator, the queues of the workers may be closed first: each worker
    then receives no request to end, and is waited for five seconds.
    """
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        iterator._shutdown_workers()


class SamplesOfWorkers(Dataset[Any]):
    """Dataset whose errors reach the calling process.

    torch sends the class of an error of a worker process to the caller. If it cannot be pickled, as those that a
    library such as boto3 makes when it is used, nothing is sent, and the caller waits for ever.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:
            try:
                pickle.dumps(type(error))
            except (pickle.PicklingError, AttributeError, TypeError):
                raise SampleError(f"sample {index} of the data: {type(error).__name__}: {error}") from None
            raise


def rank_sampler(
    config: DataloaderConfig,
    dataset: Any,
    *,
    seed: int,
    global_batch_size: int | None,
    repeats: bool = False,
    **position: int,
) -> RankSampler:
    """Return the sampler of a rank; arguments and errors as those of `build_data_iterator`."""
    position["total_samples"] = len(dataset)
    if config.dataloader_type in (None, "single"):
        return SingleSampler(**position, drop_last=config.drop_last, repeats=repeats)
    if config.dataloader_type == "cyclic":
        return CyclicSampler(**position, seed=seed)
    if config.dataloader_type == "batch" and global_batch_size is not None:
        length = getattr(dataset, "length", None)
        return BatchSampler(**position, global_batch_size=global_batch_size, length=length, repeats=repeats)
    raise ValueError(
        f"dataset.dataloader_type: {config.dataloader_type!r} with global_batch_size={global_batch_size}; the types "
        "are single, cyclic, batch and external, and batch needs the size of a global batch. Set both."
    )
