"""Iterators over the training and validation data: repetition, check, events, discarded steps. Does not import torch.

A rank reads from one iterator, from a list with one iterator per model chunk, or from None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from mb_loop.errors import DataExhaustedError, DataIteratorError

if TYPE_CHECKING:
    from mb_loop.callbacks import EventDispatcher
    from mb_loop.rerun_machine import RerunMachine
    from mb_loop.step.microbatches import StepBatch

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


def require_iterators(data: Any, *, name: str) -> None:
    """Reject anything but an iterator, a list with one iterator per chunk, or None.

    Raises:
        DataIteratorError: the data is of another type.
    """
    for iterator in data if isinstance(data, list) else [data]:
        if iterator is not None and not hasattr(iterator, "__next__"):
            raise DataIteratorError(
                f"{name}: is of type {type(iterator).__name__}, which is not an iterator, so the loop could not keep "
                "its position from step to step. Write mb_loop.repeat(...) around it, which restarts at its end, or "
                "iter(...)."
            )


class ObservedIterator:
    """Data iterator that fires `on_train_microbatch` for each microbatch."""

    def __init__(self, iterator: Iterator[Any], events: EventDispatcher, *, chunk: int) -> None:
        self._iterator, self._events, self._chunk = iterator, events, chunk

    def __iter__(self) -> ObservedIterator:
        """Return the iterator itself."""
        return self

    def __next__(self) -> Any:
        """Return the next microbatch, after the event."""
        microbatch = next(self._iterator)
        self._events("on_train_microbatch", microbatch=microbatch, chunk=self._chunk)
        return microbatch


def observed(data_iterator: Any, events: EventDispatcher) -> Any:
    """Return an iterator, or a list of those of several chunks, whose microbatches are events if anything listens."""
    if not events.manager.has_callbacks("on_train_microbatch"):
        return data_iterator
    if isinstance(data_iterator, list):
        return [
            None if iterator is None else ObservedIterator(iterator, events, chunk=number)
            for number, iterator in enumerate(data_iterator)
        ]
    return None if data_iterator is None else ObservedIterator(data_iterator, events, chunk=0)


def discard_step(data_iterator: Any, machine: RerunMachine | None) -> Callable[[StepBatch], None]:
    """Return a function that consumes the microbatches of a step from the iterator of every chunk.

    The function raises DataExhaustedError if the data ends within the step.
    """
    iterators = data_iterator if isinstance(data_iterator, list) else [data_iterator]
    end = object()

    def discard(batch: StepBatch) -> None:
        with nullcontext() if machine is None else machine.discarding(data_iterator):
            for iterator in iterators:
                for _ in range(batch.num_microbatches if iterator is not None else 0):
                    if next(iterator, end) is end:
                        raise DataExhaustedError(
                            "data iterator: ended within a step of train.iterations_to_skip. Provide more data."
                        )

    return discard
