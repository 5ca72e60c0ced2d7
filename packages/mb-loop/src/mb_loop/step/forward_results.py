"""Checks of what a forward step and its loss function return. Imports torch."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mb_loop.errors import ForwardStepError


def checked_output(returned: Any, *, has_loss: bool = True) -> tuple[Any, Any]:
    """Return the result of a forward step: the output of the model, and the loss function for it.

    Args:
        returned: result of the forward step.
        has_loss: False: the loss function may be None, on a stage without a loss.

    Raises:
        ForwardStepError: the result is something else.
    """
    if isinstance(returned, tuple | list) and len(returned) == 2:
        output, loss_function = returned
        if callable(loss_function) or (loss_function is None and not has_loss):
            return output, loss_function
    raise ForwardStepError(
        f"forward step: returned {type(returned).__name__}, but a schedule needs the output and a function of it, "
        "which a pipeline calls on its last stage. Write: return output, lambda output: (loss, {'loss': "
        "loss.detach()})."
    )


def checked_loss(returned: Any) -> tuple[Any, ...]:
    """Return the result of a loss function: the loss, possibly the number of tokens, and the report. Reads no value.

    Raises:
        ForwardStepError: the result is something else, or the loss has no gradient although gradients are enabled.
    """
    if not isinstance(returned, tuple | list) or len(returned) not in (2, 3):
        raise ForwardStepError(
            f"loss function: returned {type(returned).__name__}, but the loop also needs what to report. Write: return "
            "loss, {'loss': loss.detach()}; or the sum of the losses, the number of tokens, and {name: tensor}."
        )
    loss, report = returned[0], returned[-1]
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not isinstance(report, Mapping):
        shape = f"{tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ForwardStepError(
            f"loss function: returned a loss ({shape}) and a report ({type(report).__name__}), but the first must be a "
            "tensor with one element and the last a dictionary. Write: return loss, {'loss': loss.detach()}."
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise ForwardStepError(
            "loss function: returned a loss without a gradient, so the step could not change any parameter. It was "
            "detached, computed under torch.no_grad(), or all parameters are frozen. Return the loss itself."
        )
    return tuple(returned)
