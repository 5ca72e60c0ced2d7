"""Batches from a dataset, on torch's DataLoader."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader

from mb_data.config import DataloaderConfig
from mb_data.samplers import BatchSampler, CyclicSampler, SingleSampler


@runtime_checkable
class CollatingDataset(Protocol):
    """A dataset that puts its samples together itself, because they differ in length."""

    def collate(self, samples: Sequence[Mapping[str, torch.Tensor]]) -> Mapping[str, torch.Tensor]:
        """Return one micro-batch."""


@runtime_checkable
class DatasetWithLengths(Protocol):
    """A dataset that knows how long a sample is without reading it."""

    def length(self, index: int) -> int:
        """Return its tokens."""


def build_data_iterator(  # noqa: PLR0913 (a place in the data, each number by name)
    dataset: Any,
    *,
    config: DataloaderConfig,
    consumed_samples: int,
    micro_batch_size: int,
    data_parallel_rank: int,
    data_parallel_size: int,
    seed: int = 1234,
    global_batch_size: int | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
) -> Iterator[dict[str, torch.Tensor]]:
    """Iterate over the micro-batches of one data-parallel rank, from a position on.

    Not collective. Does not draw from torch's global random numbers.

    Args:
        dataset: Samples by index, or with `dataloader_type="external"` an iterable of finished batches. One with a
            method `collate` makes its own micro-batches of samples; one with `length` has global batches sorted by it.
        config: The dataset's section; `dataloader_type` None means `single`.
        consumed_samples: Position in the global order: samples that all ranks together have read before.
        micro_batch_size: Sequences in one batch of one rank.
        data_parallel_rank: This rank.
        data_parallel_size: Number of ranks that share the data.
        seed: Seed of the cyclic order and of the workers' random numbers.
        global_batch_size: Sequences of one step; `batch` needs it.
        worker_init_fn: Called with the worker's number at the start of each worker process.

    Returns:
        Dictionaries of tensors, each [micro_batch_size, ...]. `single` ends with the data (without `drop_last` in a
        smaller batch), `cyclic` never.

    Raises:
        ValueError: The loader type is not supported, or sizes, rank and position do not fit.
        NotEnoughSamplesError: The dataset is too small.
    """
    if config.dataloader_type == "external":
        return iter(dataset)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=_sampler(
            config,
            dataset,
            seed=seed,
            global_batch_size=global_batch_size,
            total_samples=len(dataset),
            consumed_samples=consumed_samples,
            micro_batch_size=micro_batch_size,
            data_parallel_rank=data_parallel_rank,
            data_parallel_size=data_parallel_size,
        ),
        collate_fn=dataset.collate if isinstance(dataset, CollatingDataset) else None,
        num_workers=config.num_workers,
        pin_memory=config.pin_memory and torch.cuda.is_available(),
        persistent_workers=config.persistent_workers and config.num_workers > 0,
        worker_init_fn=worker_init_fn,
        generator=torch.Generator().manual_seed(seed),
    )
    return iter(loader)


def _sampler(
    config: DataloaderConfig, dataset: Any, *, seed: int, global_batch_size: int | None, **position: int
) -> SingleSampler | CyclicSampler | BatchSampler:
    if config.dataloader_type in (None, "single"):
        return SingleSampler(**position, drop_last=config.drop_last)
    if config.dataloader_type == "cyclic":
        return CyclicSampler(**position, seed=seed)
    if config.dataloader_type == "batch" and global_batch_size is not None:
        length = dataset.length if isinstance(dataset, DatasetWithLengths) else None
        return BatchSampler(**position, global_batch_size=global_batch_size, length=length)
    raise ValueError(
        f"dataset.dataloader_type: {config.dataloader_type!r} with global_batch_size={global_batch_size}; batch draws "
        "global batches, and there are no other types than single, cyclic, batch and external. Give both."
    )
