"""Forward-backward schedule without pipelining, for use without Megatron. Imports torch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mb_loop.errors import LoopError
from mb_loop.step.forward_step import checked_loss, checked_output

ForwardBackward = Callable[..., list[Any]]
"""Schedule, as Megatron's or `forward_backward_no_pipelining`: takes keyword arguments, returns one loss dict per
microbatch."""


class ScheduleError(LoopError, ValueError):
    """The schedule without pipelining cannot run this model."""

    internal = True


def forward_backward_no_pipelining(
    *,
    forward_step_func: Callable[[Any, Any], tuple[Any, Callable[..., Any]]],
    data_iterator: Iterator[Any] | Sequence[Iterator[Any]] | None,
    model: Sequence[Module],
    num_microbatches: int,
    forward_only: bool = False,
    collect_non_loss_data: bool = False,
    **unused: object,
) -> list[Any]:
    """Run all microbatches of a step and accumulate their gradients. Forward steps follow Megatron's contract.

    `forward_step_func(iterator, model)` returns (output, loss function). The loss function returns either
    `(loss, reported)`, or `(loss sum, number of tokens, reported)`; the latter is divided by its tokens. Either way
    the gradient is the mean over the microbatches, as with Megatron's `calculate_per_token_loss=False`.
    With `collect_non_loss_data` the loss function is called as `loss_function(output, non_loss_data=True)`, its return
    values are collected, and there is no backward pass. Further arguments of Megatron's schedules, such as the sequence
    length, are accepted and ignored.

    Raises:
        ScheduleError: there are several model chunks.
        ForwardStepError: the forward step or the loss function returned something else.
    """
    if len(model) != 1:
        raise ScheduleError(
            f"model: has {len(model)} chunks, but this schedule does not support pipelining. "
            "Pass forward_backward_func=get_forward_backward_func() of Megatron Core."
        )
    iterator = data_iterator[0] if isinstance(data_iterator, Sequence) else data_iterator
    reported = []
    for index in range(num_microbatches):
        last = index == num_microbatches - 1
        with _gradient_sync(model[0], sync=last or forward_only):
            output, loss_function = checked_output(forward_step_func(iterator, model[0]))
            if collect_non_loss_data:
                reported.append(loss_function(output, non_loss_data=True))
                continue
            loss, report = _mean_loss(loss_function(output))
            if not forward_only:
                torch.autograd.backward(loss / num_microbatches)
        reported.append(report)
    return reported


def _mean_loss(returned: Any) -> tuple[Tensor, Any]:
    loss, *tokens, report = checked_loss(returned)
    return loss / torch.as_tensor(tokens[0]).clamp(min=1) if tokens else loss, report


def _gradient_sync(module: Module, *, sync: bool) -> AbstractContextManager[None]:
    """Return a context in which torch's DistributedDataParallel averages gradients only if `sync`."""
    if isinstance(module, DistributedDataParallel) and not sync:
        return module.no_sync()
    return nullcontext()
