"""Batch samplers of data-parallel ranks.

All samplers define one global order of the samples, which depends neither on the data-parallel size nor on the
micro-batch size. Position `p` of this order is the `p`-th sample that is consumed. The number of consumed samples is
therefore the complete state of a sampler, and a run may resume with another data-parallel size. Each micro-step
consumes the next `micro_batch_size * data_parallel_size` positions, of which rank `r` takes the `r`-th contiguous part.
`BatchSampler` does so within a sorted global batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mb_data.errors import DatasetError, NotEnoughSamplesError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSampler(ABC):
    """Base of the samplers: the position of a rank in the global order.

    Raises:
        ValueError: A size is below 1, or the rank is not below the size.
    """

    total_samples: int
    consumed_samples: int
    """Samples that all ranks have consumed."""
    micro_batch_size: int
    data_parallel_rank: int
    data_parallel_size: int

    def __post_init__(self) -> None:
        rank, size = self.data_parallel_rank, self.data_parallel_size
        if self.micro_batch_size < 1 or self.consumed_samples < 0 or not 0 <= rank < size:
            raise ValueError(
                f"dataset: micro_batch_size={self.micro_batch_size}, consumed_samples={self.consumed_samples}, "
                f"data_parallel_rank={rank} of {size}; sizes are at least 1, ranks and positions at least 0. Correct "
                "them."
            )

    @abstractmethod
    def __iter__(self) -> Iterator[list[int]]:
        """Yield the sample indices of each micro-batch of this rank."""

    @property
    def step(self) -> int:
        """Samples that all ranks consume in one micro-step."""
        return self.micro_batch_size * self.data_parallel_size

    def _require_unconsumed(self) -> None:
        if self.consumed_samples > self.total_samples:
            raise DatasetError(
                f"dataset: {self.consumed_samples} samples are consumed, but there are only {self.total_samples}; "
                "the checkpoint was saved with more data. Use the same data, or dataloader_type='cyclic'."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSampler(RankSampler):
    """Sampler for one epoch in the order of the dataset. Megatron's datasets are already shuffled.

    Yields lists of sample indices. All ranks yield the same number of lists. At the end, `drop_last` drops the samples
    that do not fill a micro-batch on every rank. Without it they are distributed evenly, and dropped only if there is
    less than one sample per rank. With `repeats` the first sample follows the last one, without end.

    Raises:
        ValueError: A size is below 1, or the rank is not below the size.
        DatasetError: More samples are consumed than exist.
        NotEnoughSamplesError: There are no samples, or with `drop_last` less than one micro-batch per rank.
    """

    drop_last: bool = True
    repeats: bool = False

    def __post_init__(self) -> None:
        RankSampler.__post_init__(self)  # super() does not work in a dataclass with slots
        if self.total_samples < (self.step if self.drop_last else self.data_parallel_size):
            raise NotEnoughSamplesError(
                f"dataset: {self.total_samples} samples do not fill one micro-batch on every rank (micro_batch_size="
                f"{self.micro_batch_size}, data_parallel_size={self.data_parallel_size}, drop_last={self.drop_last}); "
                "no batch would be read. Provide more data, a smaller seq_length or a smaller micro-batch."
            )
        if not self.repeats:
            self._require_unconsumed()

    def __iter__(self) -> Iterator[list[int]]:
        position, step = self.consumed_samples, self.step
        while self.repeats or position + step <= self.total_samples:
            start = position + self.data_parallel_rank * self.micro_batch_size
            yield [index % self.total_samples for index in range(start, start + self.micro_batch_size)]
            position += step
        remaining = self.total_samples - position
        if not self.drop_last and remaining >= self.data_parallel_size:
            first, end = (
                position + remaining * rank // self.data_parallel_size
                for rank in (self.data_parallel_rank, self.data_parallel_rank + 1)
            )
            yield list(range(first, end))


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicSampler(RankSampler):
    """Sampler for endless epochs, each with a different order.

    Yields lists of sample indices without end. The order of epoch `n` is a permutation that depends only on `seed` and
    `n`. A batch may span two epochs, so no sample is dropped and `drop_last` does not apply.

    Raises:
        ValueError: A size is below 1, or the rank is not below the size.
        NotEnoughSamplesError: There are no samples.
    """

    seed: int

    def __post_init__(self) -> None:
        RankSampler.__post_init__(self)  # super() does not work in a dataclass with slots
        if self.total_samples < 1:
            raise NotEnoughSamplesError(
                "dataset: 0 samples; there is nothing to read. Provide more data or a smaller seq_length."
            )

    def __iter__(self) -> Iterator[list[int]]:
        position = self.consumed_samples + self.data_parallel_rank * self.micro_batch_size
        number = -1
        order: NDArray[np.unsignedinteger] | None = None
        while True:
            batch = []
            for index in range(position, position + self.micro_batch_size):
                if index // self.total_samples != number:
                    number = index // self.total_samples
                    order = None  # the memory of one order, not of two
                    order = _order_of_epoch(self.total_samples, self.seed, number)
                batch.append(int(order[index % self.total_samples]))  # type: ignore[index]  # of the first index
            yield batch
            position += self.step


def _order_of_epoch(samples: int, seed: int, epoch: int) -> NDArray[np.unsignedinteger]:
    """Return `default_rng((seed, epoch)).permutation(samples)` in 4 bytes a sample; runs in progress rely on it."""
    order = np.arange(samples, dtype=np.min_scalar_type(max(samples - 1, 2**16)))
    np.random.default_rng((seed, epoch)).shuffle(order)
    return order


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSampler(RankSampler):
    """Sampler for one epoch in the order of the dataset, in complete global batches sorted by length.

    Yields lists of sample indices. A global batch contains the same samples as with `SingleSampler`, but longest first.
    Samples of similar length then share a micro-batch and a micro-step, which reduces padding and the time that ranks
    wait for each other. An incomplete global batch at the end is dropped. With `repeats` it is completed by the first
    samples, which follow the last one without end.

    Args:
        length: Returns the length of a sample. None: all samples have equal length and keep their order.

    Raises:
        ValueError: A size is below 1, the rank is not below the size, or the global batch is not a multiple of the
            micro-batches of all ranks.
        DatasetError: More samples are consumed than exist.
        NotEnoughSamplesError: The samples do not fill a global batch.
    """

    global_batch_size: int
    length: Callable[[int], int] | None = None
    repeats: bool = False

    def __post_init__(self) -> None:
        RankSampler.__post_init__(self)  # super() does not work in a dataclass with slots
        if self.global_batch_size < 1 or self.global_batch_size % self.step:
            raise ValueError(
                f"dataset: a global batch of {self.global_batch_size} is not divisible into micro-batches of "
                f"{self.micro_batch_size} on {self.data_parallel_size} ranks; every step distributes a complete global "
                "batch. Change one of the sizes, or use dataloader_type='single'."
            )
        require_global_batch(self.total_samples, global_batch_size=self.global_batch_size, drop_last=True)
        if not self.repeats:
            self._require_unconsumed()

    def __iter__(self) -> Iterator[list[int]]:
        position, size = self.consumed_samples, self.global_batch_size
        while self.repeats or position + size <= self.total_samples:
            batch = [index % self.total_samples for index in range(position, position + size)]
            if self.length is not None:
                batch.sort(key=self.length, reverse=True)
            for first in range(self.data_parallel_rank * self.micro_batch_size, len(batch), self.step):
                yield batch[first : first + self.micro_batch_size]
            position += size


def require_global_batch(total_samples: int, *, global_batch_size: int, drop_last: bool) -> None:
    """Reject a training set that cannot fill one global batch, if incomplete batches are dropped.

    Raises:
        NotEnoughSamplesError: The training set has fewer samples than a global batch.
    """
    if drop_last and total_samples < global_batch_size:
        raise NotEnoughSamplesError(
            f"dataset: {total_samples} samples do not fill one global batch of {global_batch_size}; no step could "
            "run. Provide more data, a smaller seq_length or a smaller global batch."
        )
