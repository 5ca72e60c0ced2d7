"""What one training step leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One training step. Tensors stay on the device: reading one is the reader's synchronisation."""

    step: int
    """Number of this step, one-based: `TrainState.step` once the step is counted."""

    losses: Mapping[str, Tensor]
    """Scalar per name, averaged over microbatches and over the data- and context-parallel ranks; empty
    except on the last pipeline stage."""

    grad_norm: float | Tensor | None = None
    """Norm of the gradient before clipping; None when the optimizer does not say."""

    num_zeros_in_grad: float | Tensor | None = None
    """Zero entries in the gradient; None when the optimizer does not count them."""

    skipped: bool = False
    """The optimizer refused the step (overflow): weights and scheduler stay, data is used up."""

    learning_rate: float | Tensor | None = None
    """The rate that this step was made with."""

    decoupled_learning_rate: float | Tensor | None = None
    """The same of parameters that have a schedule of their own, embedding and output layer say; None: none have."""

    max_attention_logit: Tensor | None = None
    """The largest attention logit of the whole model, alike on all ranks; None where they are not measured."""

    samples: int
    """Sequences trained on, over all ranks."""

    tokens: int | None = None
    """samples x sequence length, padding included; None when no sequence length is set."""

    should_checkpoint: bool = False
    """A rerun machine asks for a lasting checkpoint now."""

    exit_code: int | None = None
    """A rerun machine asks to end the run with this code; the step then does not count."""


def no_flops(result: StepResult) -> float:
    """Count no operations of a step."""
    return 0.0
