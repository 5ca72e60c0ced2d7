"""Loss of next-token prediction, with Megatron-Bridge's parameters. Imports torch and megatron."""

from functools import partial

import torch

from mb_loop.trainer_api import inspect_loss
from mb_models import masked_next_token_loss as masked_loss
from mb_models.trainer_api import Loss


def masked_next_token_loss(
    loss_mask: torch.Tensor,
    output_tensor: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    check_for_nan_in_loss: bool = True,
    check_for_spiky_loss: bool = False,
) -> Loss:
    """Sum the token losses that the mask selects; return the sum, the number of tokens, and both as "lm loss".

    The checks are those of `rerun_state_machine`, which a run makes of the loss of any forward step.

    Args:
        loss_mask: Tokens that count.
        output_tensor: Token losses of the model, or a pair of them and the mask to use instead of `loss_mask`.
        check_for_nan_in_loss: Check for NaN and infinity here, too; synchronises with the device.
        check_for_spiky_loss: Report a loss that is unusually large, here, too; synchronises with the device.

    Raises:
        mb_loop.NonFiniteLossError: The loss is NaN or infinite, and no step is repeated.
    """
    losses, mask = output_tensor if isinstance(output_tensor, tuple) else (output_tensor, loss_mask)
    inspect = partial(inspect_loss, finite=check_for_nan_in_loss, spiky=check_for_spiky_loss)
    return masked_loss(mask, losses, inspect_loss=inspect)


def create_masked_next_token_loss_function(
    loss_mask: torch.Tensor, check_for_nan_in_loss: bool, check_for_spiky_loss: bool
) -> "partial[Loss]":
    """Return the loss function of a microbatch: `masked_next_token_loss` of its mask."""
    return partial(
        masked_next_token_loss,
        loss_mask,
        check_for_nan_in_loss=check_for_nan_in_loss,
        check_for_spiky_loss=check_for_spiky_loss,
    )
