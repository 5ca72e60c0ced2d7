"""Functions that run on ranks of `test_losses.py`."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.pipeline_parallel import schedules
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region
from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megatron.core.transformer.transformer_config import TransformerConfig

import mb_guard

VOCABULARY = 12


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits of shape (sequence, batch, vocabulary) and targets."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(5, 2, VOCABULARY, generator=generator), torch.randint(
        VOCABULARY, (5, 2), generator=generator
    )


def over_ranks(
    fault: str | None, compute: Callable[..., torch.Tensor], *, weights: torch.Tensor | None = None
) -> tuple[list[float], list[float]]:
    """Return the losses of logits that are split over the ranks, and the gradient of the logits of all ranks.

    Args:
        fault: Fault that is not corrected.
        compute: Returns losses of shape (sequence, batch) from this rank's logits, targets and their group.
        weights: Of the losses in the sum that is differentiated; None: ones.
    """
    size = torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    group = parallel_state.get_tensor_model_parallel_group()
    logits, target = data()
    part = logits.chunk(size, dim=-1)[group.rank()].clone().requires_grad_()
    with mb_guard.without(fault) if fault else nullcontext():
        losses = compute(part, target, group)
        (losses if weights is None else losses * weights).sum().backward()
    parts = [torch.empty_like(part) for _ in range(size)]
    torch.distributed.all_gather(parts, part.grad.contiguous(), group=group)
    return losses.flatten().tolist(), torch.cat(parts, dim=-1).flatten().tolist()


def smoothed(fault: str | None) -> tuple[list[float], list[float]]:
    """Return losses with label smoothing, and their gradient."""

    def compute(part: torch.Tensor, target: torch.Tensor, group: Any) -> torch.Tensor:
        return vocab_parallel_cross_entropy(part, target, label_smoothing=0.1, tp_group=group)

    return over_ranks(fault, compute, weights=torch.arange(10.0).reshape(5, 2))


class Model(LanguageModule):
    """The part of a model that computes its loss."""

    def __init__(self, **settings: object) -> None:
        size = torch.distributed.get_world_size()
        config = TransformerConfig(
            num_layers=1, hidden_size=8, num_attention_heads=2, tensor_model_parallel_size=size, **settings
        )
        super().__init__(config)
        self.vocab_size = VOCABULARY


def gathered(fault: str | None) -> tuple[list[float], list[float]]:
    """Return the losses of gathered logits, and their gradient."""

    def compute(part: torch.Tensor, target: torch.Tensor, group: Any) -> torch.Tensor:
        # on one rank this is a view of the leaf, in which Megatron's cross entropy would write
        whole = gather_from_tensor_model_parallel_region(part, group=group).clone()
        return Model().compute_language_model_loss(target.transpose(0, 1), whole).transpose(0, 1)

    return over_ranks(fault, compute)


def fused(fault: str | None) -> tuple[list[float], list[float]]:
    """Return the losses of the fused cross entropy, and their gradient."""

    def compute(part: torch.Tensor, target: torch.Tensor, group: Any) -> torch.Tensor:
        model = Model(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="native")
        return model.compute_language_model_loss(target.transpose(0, 1), part * 1.0).transpose(0, 1)

    return over_ranks(fault, compute)


def logged(fault: str | None, with_tokens: bool) -> tuple[float, float]:
    """Return the logged loss of one of 8 microbatches, and the loss that is differentiated."""
    parallel_state.initialize_model_parallel()
    output = torch.tensor([6.0], requires_grad=True) * 1.0
    tokens = [torch.tensor(3)] if with_tokens else []
    stored: list[dict[str, torch.Tensor]] = []
    with mb_guard.without(fault) if fault else nullcontext():
        loss, _ = schedules.forward_step_calc_loss(
            model=torch.nn.Identity(),
            output_tensor=output,
            loss_func=lambda loss: (loss, *tokens, {"lm loss": loss.detach()}),
            config=TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2),
            vp_stage=None,
            collect_non_loss_data=False,
            num_microbatches=8,
            forward_data_store=stored,
            cp_group_size=1,
            is_last_stage=True,
        )
    return float(stored[0]["lm loss"]), float(loss)


def reference(label_smoothing: float) -> tuple[list[float], list[float]]:
    """Return torch's losses and gradient, for the smoothing of Megatron's comment: alpha K / (K - 1) over all words."""
    logits, target = data()
    logits.requires_grad_()
    smoothing = label_smoothing * VOCABULARY / (VOCABULARY - 1)
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), target.flatten(), label_smoothing=smoothing, reduction="none"
    )
    weights = torch.arange(10.0) if label_smoothing else torch.ones(10)
    (losses * weights).sum().backward()
    return losses.tolist(), logits.grad.flatten().tolist()
