"""Data loaders as iterators without an end. Does not import torch."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from mb_loop.errors import DataExhaustedError

Batch = TypeVar("Batch")


def repeat(data: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches of a data loader, again and again. Each pass starts with `iter(data)`, so that it may shuffle.

    A resumed run starts with the first batch of a new pass: `train` does not store the position of an iterator.

    Raises:
        DataExhaustedError: a pass has no batch.
    """
    while True:
        batches = iter(data)
        first = next(batches, None)
        if first is None:
            raise DataExhaustedError(
                f"repeat: {type(data).__name__} has no batch, so that repeating it would never end. Pass data with at "
                "least one batch; an iterator can be read only once, so pass the loader itself."
            )
        yield first
        yield from batches
