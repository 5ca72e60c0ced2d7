"""Forward step with a loss of the project: only the sorted half counts. Imports Megatron."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from mb_models import gpt_forward_step


def sorting_step(
    data_iterator: Iterator[Any] | None, model: torch.nn.Module, return_schedule_plan: bool = False
) -> tuple[Any, Any]:
    """Run one microbatch; return the losses of its tokens, shape [batch, sequence], and the loss function."""
    output, loss_function = gpt_forward_step(data_iterator, model, return_schedule_plan)
    return output, None if loss_function is None else partial(sorted_half_loss)


def sorted_half_loss(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Return the sum of the losses of the second half, the number of its tokens, and the value to log."""
    second = losses[:, losses.shape[1] // 2 :].float()
    total, tokens = second.sum(), torch.tensor(second.numel(), dtype=torch.int, device=losses.device)
    return total, tokens, {"sorting loss": torch.stack([total.detach(), tokens.float()])}
