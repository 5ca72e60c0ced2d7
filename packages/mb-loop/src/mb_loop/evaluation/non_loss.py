"""Collection of data in addition to losses during an evaluation. Imports torch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mb_loop.errors import TrainSettingsError
from mb_loop.step.forward_backward import ForwardBackwardRunner
from mb_loop.step.microbatches import StepBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class NonLossData:
    """Data that an evaluation collects in addition to losses, and its processing. All ranks pass the same functions.

    Raises:
        TrainSettingsError: `process` is set, and the only rank has no writer.
    """

    collect: Callable[[Sequence[Any]], Any] | None = None
    """Called with the model chunks on every rank; returns the data. None: the data are the return values of
    `loss_function(output, non_loss_data=True)` for the last batch, which runs again: a list with one entry per
    microbatch, empty on all but the last pipeline stage."""

    process: Callable[[Any, int, Any], object] | None = None
    """Called as `(data, step, writer)` on the ranks that have a writer. None: the data is discarded."""

    writer: Any = None
    """Writer that is passed to `process`, such as TensorBoard's SummaryWriter; None on ranks that write nothing."""

    def __post_init__(self) -> None:
        """Reject data that would be collected without being written."""
        if self.process is not None and self.writer is None and _ranks() == 1:
            raise TrainSettingsError(
                "process_non_loss_data_func: is set without a writer, so it would never be called: only ranks with "
                "a writer call it. Pass a writer, such as a SummaryWriter of TensorBoard."
            )

    @classmethod
    @contextmanager
    def with_tensorboard(
        cls,
        *,
        collect: Callable[[Sequence[Any]], Any] | None,
        process: Callable[[Any, int, Any], object] | None,
        folder: Path | str | None,
    ) -> "Iterator[NonLossData]":
        """Open TensorBoard's writer for the data within the block, if there is a function that receives it.

        Args:
            collect: see the field of this name.
            process: see the field of this name.
            folder: receives the event files; None on ranks that write nothing.
        """
        if process is None or folder is None:
            yield cls(collect=collect, process=process)
            return
        tensorboard = import_module("torch.utils.tensorboard")  # most runs do not need it
        with tensorboard.SummaryWriter(folder) as writer:
            yield cls(collect=collect, process=process, writer=writer)

    @property
    def repeats_batch(self) -> bool:
        """Whether the last batch runs a second time."""
        return self.process is not None and self.collect is None

    def collect_and_process(self, forward: "EvaluationForward", *, model: Sequence[Any], step: int) -> None:
        """Collect the data at the end of an evaluation, and process it on ranks with a writer. Collective."""
        if self.collect is not None:
            data = self.collect(model)
        elif self.repeats_batch:
            data = forward.repeat_last_batch()
        else:
            return
        if self.process is not None and self.writer is not None:
            self.process(data, step, self.writer)


class EvaluationForward:
    """Forward passes over batches of constant size; the last batch can be repeated.

    Repeating the batch, rather than reading another one, leaves the position in the data unchanged. All ranks repeat
    it: an additional forward pass on one rank alone would block a pipeline.

    Args:
        forward_backward: runs the passes; its data is an iterator, a list with one per chunk, or None.
        batch: batch size.
        keep: keep the microbatches of the last batch in memory for `repeat_last_batch`.
    """

    def __init__(self, forward_backward: ForwardBackwardRunner, *, batch: StepBatch, keep: bool) -> None:
        data = forward_backward.data_iterator
        self._several = isinstance(data, list)
        self._iterators = [
            None if iterator is None else _RecordingIterator(iterator)
            for iterator in (data if self._several else [data])
        ]
        self._forward_backward = (
            self._reading(forward_backward, self._iterators) if keep else forward_backward
        )
        self.batch = batch

    def __call__(self) -> list[dict[str, Tensor]]:
        """Run the next batch; return the values reported by the loss function, per microbatch."""
        for iterator in self._iterators:
            if iterator is not None:
                iterator.items.clear()
        return self._forward_backward(self.batch, forward_only=True)

    def repeat_last_batch(self) -> list[Any]:
        """Run the last batch again on the recorded data; return the non-loss data per microbatch."""
        again = [None if iterator is None else iter(iterator.items) for iterator in self._iterators]
        return self._reading(self._forward_backward, again)(
            self.batch, forward_only=True, collect_non_loss_data=True
        )

    def _reading(self, forward_backward: ForwardBackwardRunner, data: list[Any]) -> ForwardBackwardRunner:
        return forward_backward.with_data(data if self._several else data[0])


class _RecordingIterator:
    """Iterator that records its items."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self.items: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item = next(self._iterator)
        self.items.append(item)
        return item


def _ranks() -> int:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1
