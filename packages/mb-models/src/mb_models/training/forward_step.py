"""Forward step of GPT training, with the signature of Megatron's schedules.

Shapes: B sequences of a microbatch, S tokens of a sequence, on this context-parallel rank.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.utils import get_attr_wrapped_model

from mb_models.errors import BatchError
from mb_models.evaluation.metrics import ComputeMetrics, recorded_logits, with_metrics
from mb_models.training.batches import get_batch

Loss = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]
"""Sum of token losses, number of tokens (int), and logged metrics: name -> tensor([sum, number])."""

NO_SCHEDULE_PLAN = (
    "return_schedule_plan: {} has no schedule plan, because only a GPT has one, which overlaps the "
    "communication of experts. Set overlap_moe_expert_parallel_comm=false."
)
"""Message of the error, to be formatted with the kind of model."""


def masked_next_token_loss(
    loss_mask_BS: torch.Tensor,
    losses_BS: torch.Tensor,
    *,
    inspect_loss: Callable[[torch.Tensor], None] | None = None,
) -> Loss:
    """Sum the token losses that the mask selects; the schedule divides by tokens or by microbatches.

    Sums are float32. `inspect_loss` receives the detached sum before any division (for checks for NaN). Local to the
    rank: not collective, and without a synchronisation of its own.
    """
    mask = loss_mask_BS.reshape(-1).float()
    loss_sum = (losses_BS.reshape(-1).float() * mask).sum()
    tokens = mask.sum()
    if inspect_loss is not None:
        inspect_loss(loss_sum.detach())
    return loss_sum, tokens.to(torch.int), {"lm loss": torch.stack([loss_sum.detach(), tokens])}


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTForwardStep:
    """Callable forward step; `inspect_loss` receives every microbatch's loss sum on the last stage."""

    inspect_loss: Callable[[torch.Tensor], None] | None = None
    packed: bool = False
    """Microbatches are packed sequences, whose boundaries all stages read."""
    padded: bool = False
    """Microbatches have a `padding_mask`, which all stages read: padding is left out of the balancing of experts.

    Only padding is left out. Other tokens that the loss mask leaves out, such as prompts, are routed like all others,
    so they count in the balancing losses, the z-loss and the expert bias.
    """
    compute_metrics: ComputeMetrics | None = None
    """Metrics of the user, logged with the losses of evaluations: where the model is in evaluation mode."""

    def __call__(
        self,
        data_iterator: Iterator[Mapping[str, torch.Tensor]] | None,
        model: torch.nn.Module,
        return_schedule_plan: bool = False,
    ) -> tuple[object, Callable[[torch.Tensor], Loss] | None]:
        """Run one microbatch through one model chunk.

        Stage, groups and device are the chunk's own. Returns the chunk's output (token losses, shape [B, S], on the
        last stage; else hidden states) and the loss function for it (None on other stages). With
        `return_schedule_plan` the chunk runs nothing and its schedule plan takes the output's place (overlapped
        expert exchange).

        Raises:
            mb_models.errors.BatchError: see `get_batch`; or the microbatch has a `padding_mask` that
                intermediate stages would not read.
            ValueError: `return_schedule_plan` is set for a model that has none.
        """
        chunk = get_attr_wrapped_model(model, "pre_process", return_model_obj=True)
        if return_schedule_plan and not hasattr(chunk, "build_schedule_plan"):
            raise ValueError(NO_SCHEDULE_PLAN.format("a hybrid"))
        batch = get_batch(
            data_iterator,
            first_stage=chunk.pre_process,
            last_stage=chunk.post_process,
            device=next(chunk.parameters()).device,
            cp_group=chunk.pg_collection.cp,
            mtp_process=chunk.mtp_process,
            packed=self.packed,
            padded=self.padded,
        )
        if batch.padding_mask_BS is not None and not self.padded and _has_intermediate_stages(chunk):
            raise BatchError(
                "batch: holds a padding_mask, which intermediate pipeline stages do not read, because their routers "
                "would count padding. Use GPTForwardStep(padded=True), and give every stage an iterator."
            )
        optional = {"packed_seq_params": batch.packed_seq_params, "padding_mask": batch.padding_mask_BS}
        options = {name: value for name, value in optional.items() if value is not None}
        inputs = (batch.tokens_BS, batch.position_ids_BS, batch.attention_mask_B1SS)
        loss_function: Callable[[torch.Tensor], Loss] | None = None
        if batch.loss_mask_BS is not None:
            loss_function = partial(
                masked_next_token_loss, batch.loss_mask_BS, inspect_loss=self.inspect_loss
            )
        compute_metrics = None if model.training else self.compute_metrics
        if return_schedule_plan:
            plan = chunk.build_schedule_plan(
                *inputs, labels=batch.labels_BS, loss_mask=batch.loss_mask_BS, **options
            )
            return plan, loss_function
        with recorded_logits(chunk, needed=compute_metrics is not None) as logits:
            output = model(*inputs, labels=batch.labels_BS, loss_mask=batch.loss_mask_BS, **options)
        if compute_metrics is not None and loss_function is not None:
            loss_function = with_metrics(
                loss_function,
                compute_metrics,
                labels_BS=batch.labels_BS,
                loss_mask_BS=batch.loss_mask_BS,
                logits=logits,
            )
        return output, loss_function


def _has_intermediate_stages(chunk: Any) -> bool:
    return bool(chunk.config.num_moe_experts) and (
        chunk.pg_collection.pp.size() > 2 or chunk.vp_stage is not None
    )


def gpt_forward_step(
    data_iterator: Iterator[Mapping[str, torch.Tensor]] | None,
    model: torch.nn.Module,
    return_schedule_plan: bool = False,
) -> tuple[object, Callable[[torch.Tensor], Loss] | None]:
    """Run one microbatch through one model chunk: `GPTForwardStep` without inspection, as a plain function."""
    return GPTForwardStep()(data_iterator, model, return_schedule_plan)
