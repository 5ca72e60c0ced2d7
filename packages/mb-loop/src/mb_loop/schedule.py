"""Forward and backward passes of a model without pipeline stages, for people without Megatron. Needs torch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

ForwardBackward = Callable[..., list[Any]]
"""Megatron's schedules and `forward_backward_no_pipelining`: keyword arguments in, one loss dict per microbatch out."""


class ScheduleError(ValueError):
    """The plain schedule cannot run this model."""


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
    """Run all microbatches of a step and add up their gradients; Megatron's contract for forward steps.

    `forward_step_func(iterator, model)` returns (output, loss function). The loss function returns either
    `(loss, reported)`, or `(loss sum, number of tokens, reported)`; the latter is divided by its tokens. Either way
    the gradient is the mean over the microbatches, as with Megatron's `calculate_per_token_loss=False`.
    With `collect_non_loss_data` the loss function is called as `loss_function(output, non_loss_data=True)`, whatever it
    returns is collected, and there is no backward pass. Sequence length and the like, which Megatron's schedules need,
    are accepted and not used.

    Raises:
        ScheduleError: several model chunks.
    """
    if len(model) != 1:
        raise ScheduleError(
            f"model: has {len(model)} chunks, but the plain schedule knows no pipeline. "
            "Pass forward_backward_func=get_forward_backward_func() of Megatron Core."
        )
    iterator = data_iterator[0] if isinstance(data_iterator, Sequence) else data_iterator
    reported = []
    for index in range(num_microbatches):
        last = index == num_microbatches - 1
        with _gradient_sync(model[0], wanted=last or forward_only):
            output, loss_function = forward_step_func(iterator, model[0])
            if collect_non_loss_data:
                reported.append(loss_function(output, non_loss_data=True))
                continue
            loss, report = _loss(loss_function(output))
            if not forward_only:
                torch.autograd.backward(loss / num_microbatches)
        reported.append(report)
    return reported


def _loss(answer: tuple[Any, ...]) -> tuple[Tensor, Any]:
    if len(answer) == 2:
        loss, report = answer
        return loss, report
    loss_sum, num_tokens, report = answer
    return loss_sum / torch.as_tensor(num_tokens).clamp(min=1), report


def _gradient_sync(module: Module, *, wanted: bool) -> AbstractContextManager[None]:
    """Let torch's DistributedDataParallel average gradients once per step, not once per microbatch."""
    if isinstance(module, DistributedDataParallel) and not wanted:
        return module.no_sync()
    return nullcontext()
