"""Forward-backward passes of a step, under any pipeline schedule. Imports torch."""

from collections.abc import Sequence
from copy import copy
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from mb_loop.errors import DataExhaustedError, ParallelSetupError
from mb_loop.step.forward_step import ForwardStep
from mb_loop.step.losses import LossGroups
from mb_loop.step.microbatches import StepBatch
from mb_loop.step.schedule import ForwardBackward, forward_backward_no_pipelining


@runtime_checkable
class GradientBuffer(Protocol):
    """Model chunk with contiguous gradient buffers, such as Megatron's DistributedDataParallel."""

    def zero_grad_buffer(self) -> None:
        """Zero the gradient buffers."""


def require_parallel_parts(
    data_parallel_size: int | None,
    model: Sequence[Any],
    *,
    schedule: ForwardBackward | None,
    groups: LossGroups | None,
) -> None:
    """Reject parts of a run that would train incorrectly without an error.

    Raises:
        ParallelSetupError: there are several data-parallel ranks and no group, torch's DistributedDataParallel has
            more ranks than the settings, or the chunks are wrapped by Megatron's and there is no schedule.
    """
    size = data_parallel_size
    for chunk in model:
        ranks = chunk.process_group.size() if isinstance(chunk, DistributedDataParallel) else 1
        if ranks > 1 and size not in (None, ranks):
            raise ParallelSetupError(
                f"data_parallel_size: is {size}, but DistributedDataParallel averages the gradients of {ranks} "
                "ranks, so that each step would read more than the global batch. Pass "
                f"LoopState.of(data_parallel_size={ranks}, ...)."
            )
    if size is not None and size > 1 and groups is None:
        raise ParallelSetupError(
            f"pg_collection: is None with data_parallel_size={size}, so each rank would report its own "
            "loss. Pass Megatron's ProcessGroupCollection, or any object whose dp_cp is the data-parallel group."
        )
    if schedule is None and any(isinstance(chunk, GradientBuffer) for chunk in model):
        raise ParallelSetupError(
            "forward_backward_func: is None with a Megatron-wrapped model, whose gradients this "
            "package's schedule would not reduce. Pass get_forward_backward_func() of "
            "megatron.core.pipeline_parallel."
        )


class ForwardBackwardRunner:
    """Schedule bound to its arguments that are constant over a run.

    Args:
        forward_step: called as `(iterator, model)`.
        data_iterator: an iterator, a list with one iterator per chunk, or None on ranks that read no data.
        model: model chunks of this rank.
        seq_length: tokens per sequence.
        schedule: Megatron's schedule; None: `forward_backward_no_pipelining` of this package.
        groups: passed to the schedule together with `p2p_communicator`.
        p2p_communicator: Megatron's pipeline communicator; None: the schedule takes both from Megatron's global state.
    """

    def __init__(
        self,
        forward_step: ForwardStep,
        *,
        data_iterator: Any,
        model: Sequence[Any],
        seq_length: int | None,
        schedule: ForwardBackward | None = None,
        groups: LossGroups | None = None,
        p2p_communicator: Any = None,
    ) -> None:
        self.data_iterator = data_iterator
        self._run = forward_backward_no_pipelining if schedule is None else schedule
        self._arguments: dict[str, Any] = {
            "forward_step_func": forward_step,
            "model": list(model),
            "seq_length": seq_length,
            "decoder_seq_length": seq_length,
        }
        # Megatron's schedules take both or neither: with a communicator they do not read the global parallel state.
        if p2p_communicator is not None:
            self._arguments["p2p_communicator"] = p2p_communicator
            self._arguments["pg_collection"] = groups

    def with_data(self, data_iterator: Any) -> "ForwardBackwardRunner":
        """Return a copy that reads from another data iterator."""
        with_iterator = copy(self)
        with_iterator.data_iterator = data_iterator
        return with_iterator

    def __call__(
        self, batch: StepBatch, *, forward_only: bool, collect_non_loss_data: bool = False
    ) -> list[dict[str, Tensor]]:
        """Run forward (and backward) on one batch; return the values reported by the loss function, per microbatch.

        With `collect_non_loss_data` the loss function is called as `loss_function(output, non_loss_data=True)` and may
        return any value.

        Raises:
            DataExhaustedError: the iterator ended within the batch.
        """
        arguments = (
            {**self._arguments, "collect_non_loss_data": True} if collect_non_loss_data else self._arguments
        )
        try:
            return self._run(
                **arguments,
                data_iterator=self.data_iterator,
                num_microbatches=batch.num_microbatches,
                micro_batch_size=batch.micro_batch_size,
                forward_only=forward_only,
            )
        except StopIteration as end:
            raise DataExhaustedError(
                f"data iterator: ended within a batch of {batch.num_microbatches} microbatches, before the steps did. "
                "Provide more data, repeat it with mb_loop.repeat(loader), or set fewer steps."
            ) from end
