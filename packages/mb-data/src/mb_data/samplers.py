"""Which samples a data-parallel rank reads, micro-batch by micro-batch.

All samplers put all samples of the run into one order that depends neither on the data-parallel size nor on the
micro-batch size. Position `p` of it is sample number `p` that is consumed, so the number of consumed samples is all
that a checkpoint needs, and a run may go on with another data-parallel size. Each micro-step takes the next
`micro_batch_size * data_parallel_size` positions, rank `r` the `r`-th part of them; `BatchSampler` does so within a
global batch that it has sorted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mb_data.errors import NotEnoughSamplesError


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSampler:
    """One pass over the samples in the dataset's order, which Megatron's datasets have shuffled already.

    Yields lists of sample indices. All ranks yield the same number of lists. At the end, `drop_last` leaves out what
    does not fill a micro-batch on every rank; otherwise the rest is spread evenly, and left out only where there is
    less than one sample for each rank.

    Raises:
        ValueError: A size is below 1, the rank is not below the size, or more was consumed than there is.
        NotEnoughSamplesError: There are no samples, or with `drop_last` not one micro-batch for each rank.
    """

    total_samples: int
    consumed_samples: int
    micro_batch_size: int
    data_parallel_rank: int
    data_parallel_size: int
    drop_last: bool = True

    def __post_init__(self) -> None:
        _check_arguments(self)
        step = self.micro_batch_size * self.data_parallel_size
        if self.total_samples < (step if self.drop_last else self.data_parallel_size):
            raise NotEnoughSamplesError(
                f"dataset: {self.total_samples} samples do not fill one micro-batch on every rank (micro_batch_size="
                f"{self.micro_batch_size}, data_parallel_size={self.data_parallel_size}, drop_last={self.drop_last}); "
                "nothing would be read. Give more data, a shorter seq_length or a smaller batch."
            )
        _check_consumed(self.consumed_samples, self.total_samples)

    def __iter__(self) -> Iterator[list[int]]:
        step = self.micro_batch_size * self.data_parallel_size
        position = self.consumed_samples
        while position + step <= self.total_samples:
            start = position + self.data_parallel_rank * self.micro_batch_size
            yield list(range(start, start + self.micro_batch_size))
            position += step
        rest = self.total_samples - position
        if not self.drop_last and rest >= self.data_parallel_size:
            first, end = (
                position + rest * rank // self.data_parallel_size
                for rank in (self.data_parallel_rank, self.data_parallel_rank + 1)
            )
            yield list(range(first, end))


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicSampler:
    """Endless passes over the samples, each in an order of its own.

    Yields lists of sample indices without end. The order of pass `n` is a permutation drawn from `seed` and `n`. A pass
    goes over into the next within a batch, so no sample is left out and `drop_last` has nothing to do.

    Raises:
        ValueError: A size is below 1, or the rank is not below the size.
        NotEnoughSamplesError: There are no samples.
    """

    total_samples: int
    consumed_samples: int
    micro_batch_size: int
    data_parallel_rank: int
    data_parallel_size: int
    seed: int

    def __post_init__(self) -> None:
        _check_arguments(self)
        if self.total_samples < 1:
            raise NotEnoughSamplesError(
                "dataset: 0 samples; there is nothing to go round. Give more data or a shorter seq_length."
            )

    def __iter__(self) -> Iterator[list[int]]:
        step = self.micro_batch_size * self.data_parallel_size
        position = self.consumed_samples + self.data_parallel_rank * self.micro_batch_size
        number = -1
        order: NDArray[np.int64] = np.empty(0, np.int64)
        while True:
            batch = []
            for index in range(position, position + self.micro_batch_size):
                if index // self.total_samples != number:
                    number = index // self.total_samples
                    order = np.random.default_rng((self.seed, number)).permutation(self.total_samples)
                batch.append(int(order[index % self.total_samples]))
            yield batch
            position += step


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSampler:
    """One pass over the samples in the dataset's order, a whole global batch at a time.

    Yields lists of sample indices. A global batch has the samples that it has for every other sampler, but longest
    first: micro-batches then have samples of like lengths, and so do the ranks at each micro-step, so that little is
    padded and nobody waits. What does not fill a global batch at the end is left out.

    Args:
        length: Returns the length of a sample; None: they are all alike, and stay in their order.

    Raises:
        ValueError: A size is below 1, the rank is not below the size, the micro-batches of all ranks do not divide the
            global batch, or more was consumed than there is.
        NotEnoughSamplesError: The samples do not fill a global batch.
    """

    total_samples: int
    consumed_samples: int
    micro_batch_size: int
    data_parallel_rank: int
    data_parallel_size: int
    global_batch_size: int
    length: Callable[[int], int] | None = None

    def __post_init__(self) -> None:
        _check_arguments(self)
        step = self.micro_batch_size * self.data_parallel_size
        if self.global_batch_size < 1 or self.global_batch_size % step:
            raise ValueError(
                f"dataset: a global batch of {self.global_batch_size} is not divided by micro-batches of "
                f"{self.micro_batch_size} on {self.data_parallel_size} ranks; it is dealt out whole. Change one of "
                "them, or use dataloader_type='single'."
            )
        require_global_batch(self.total_samples, global_batch_size=self.global_batch_size, drop_last=True)
        _check_consumed(self.consumed_samples, self.total_samples)

    def __iter__(self) -> Iterator[list[int]]:
        step = self.micro_batch_size * self.data_parallel_size
        position = self.consumed_samples
        while position + self.global_batch_size <= self.total_samples:
            batch = list(range(position, position + self.global_batch_size))
            if self.length is not None:
                batch.sort(key=self.length, reverse=True)
            for first in range(self.data_parallel_rank * self.micro_batch_size, len(batch), step):
                yield batch[first : first + self.micro_batch_size]
            position += self.global_batch_size


def require_global_batch(total_samples: int, *, global_batch_size: int, drop_last: bool) -> None:
    """Refuse a training set that cannot fill one global batch where incomplete ones are left out.

    Raises:
        NotEnoughSamplesError: It has fewer samples.
    """
    if drop_last and total_samples < global_batch_size:
        raise NotEnoughSamplesError(
            f"dataset: {total_samples} samples do not fill one global batch of {global_batch_size}; no step could be "
            "made. Give more data, a shorter seq_length or a smaller global batch."
        )


def _check_consumed(consumed_samples: int, total_samples: int) -> None:
    if consumed_samples > total_samples:
        raise ValueError(
            f"dataset: {consumed_samples} samples are consumed, but there are only {total_samples}; "
            "the checkpoint was made with more data. Give the same data, or dataloader_type='cyclic'."
        )


def _check_arguments(sampler: SingleSampler | CyclicSampler | BatchSampler) -> None:
    rank, size = sampler.data_parallel_rank, sampler.data_parallel_size
    if sampler.micro_batch_size < 1 or sampler.consumed_samples < 0 or not 0 <= rank < size:
        raise ValueError(
            f"dataset: micro_batch_size={sampler.micro_batch_size}, consumed_samples={sampler.consumed_samples}, "
            f"data_parallel_rank={rank} of {size}; sizes start with 1, and ranks and positions with 0. Correct them."
        )
