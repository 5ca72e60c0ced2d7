"""Result of one training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of one training step. Tensors remain on the device; reading one synchronises with the device."""

    step: int
    """One-based number of this step: `TrainState.step` after the step is counted."""

    losses: Mapping[str, Tensor]
    """Scalar per name, averaged over microbatches and over the data- and context-parallel ranks. Empty on all but the
    last pipeline stage."""

    grad_norm: float | Tensor | None = None
    """Norm of the gradient before clipping; None if the optimizer does not return it."""

    num_zeros_in_grad: float | Tensor | None = None
    """Zero entries in the gradient; None if the optimizer does not count them."""

    skipped: bool = False
    """The optimizer skipped the step (overflow): weights and scheduler are unchanged, the data is consumed."""

    learning_rate: float | Tensor | None = None
    """Learning rate of this step."""

    decoupled_learning_rate: float | Tensor | None = None
    """Learning rate of parameters with a separate schedule, such as the embedding; None: there are none."""

    max_attention_logit: Tensor | None = None
    """Largest attention logit of the complete model, identical on all ranks; None if it is not measured."""

    samples: int
    """Sequences trained on, over all ranks."""

    tokens: int | None = None
    """samples x sequence length, padding included; samples x `tokens_per_sample` if that is set. None: neither is."""

    should_checkpoint: bool = False
    """The rerun machine requests a persistent checkpoint now."""

    exit_code: int | None = None
    """The rerun machine requests to end the run with this code; the step is then not counted."""


def no_flops(result: StepResult) -> float:
    """Return 0.0: operations are not counted."""
    return 0.0
