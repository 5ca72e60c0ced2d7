"""Metrics of the user in evaluations: a function of the outputs and labels of each microbatch.

Shapes: B sequences of a microbatch, S tokens of a sequence (of this rank under context parallelism), V entries of the
vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

from mb_models.errors import EvaluationMetricsError


class Logits:
    """Logits of the last forward pass: this rank's part of the vocabulary, as the output layer returned it."""

    def __init__(self) -> None:
        self._layer: Any = None
        self._part_SBV: torch.Tensor | None = None

    def record(self, layer: Any, _inputs: Any, output: Any) -> None:
        """Keep the output of a call; a pass calls the layers of multi-token prediction before the model's own."""
        self._layer, part = layer, output[0] if isinstance(output, tuple) else output
        self._part_SBV = part.clone()  # the loss of Megatron Core overwrites the logits

    def gathered(self) -> torch.Tensor:
        """Return the logits of the complete padded vocabulary, [B, S, V]. Collective over tensor-parallel ranks.

        Raises:
            EvaluationMetricsError: the pass has called no output layer.
        """
        if self._part_SBV is None:
            raise EvaluationMetricsError(
                "compute_metrics: logits were read, but the model has called no output layer, which a fused loss may "
                "replace. Use losses_BS."
            )
        parts = self._part_SBV.transpose(0, 1)
        if self._layer.gather_output:
            return parts
        gathered: torch.Tensor = gather_from_tensor_model_parallel_region(parts, group=self._layer.tp_group)
        return gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOutput:
    """Microbatch of an evaluation with the outputs of the model, on a rank of the last pipeline stage."""

    losses_BS: torch.Tensor
    """Loss of each token."""
    labels_BS: torch.Tensor
    """Token to predict at each position."""
    loss_mask_BS: torch.Tensor
    """1 for tokens that count, 0 for others, such as prompts and padding."""
    recorded: Logits

    @property
    def logits_BSV(self) -> torch.Tensor:
        """Logits of the complete padded vocabulary. Collective over tensor-parallel ranks; see `Logits.gathered`."""
        return self.recorded.gathered()


ComputeMetrics = Callable[[EvaluationOutput], Mapping[str, Any]]
"""Returns metrics by name: a number, which is averaged over microbatches that have a token in the loss, or
tensor([sum, count]), whose sums over all microbatches and data-parallel ranks are divided. Called on all ranks of the
last pipeline stage, which return the same names in the same order."""


@contextmanager
def recorded_logits(model: torch.nn.Module, *, needed: bool) -> Iterator[Logits]:
    """Record the output of the model's output layer within the block, if it is `needed`."""
    logits, handles = Logits(), []
    if needed:
        layers = [layer for name, layer in model.named_modules() if name.rpartition(".")[2] == "output_layer"]
        handles = [layer.register_forward_hook(logits.record) for layer in dict.fromkeys(layers)]
    try:
        yield logits
    finally:
        for handle in handles:
            handle.remove()


def with_metrics(
    loss_function: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]],
    compute_metrics: ComputeMetrics,
    *,
    labels_BS: torch.Tensor | None,
    loss_mask_BS: torch.Tensor | None,
    logits: Logits,
) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]]:
    """Return a loss function whose logged values include the metrics of the user; the last stage has labels and mask.

    The function raises EvaluationMetricsError if the metrics are not numbers by name, or have the name of a loss.
    """
    if labels_BS is None or loss_mask_BS is None:
        return loss_function

    def measured(losses_BS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        loss, tokens, logged = loss_function(losses_BS)
        computed = compute_metrics(
            EvaluationOutput(
                losses_BS=losses_BS, labels_BS=labels_BS, loss_mask_BS=loss_mask_BS, recorded=logits
            )
        )
        if not isinstance(computed, Mapping):
            raise EvaluationMetricsError(
                f"compute_metrics: returned a {type(computed).__name__}, not metrics by name. Return a dictionary."
            )
        counted = (loss_mask_BS != 0).any()
        metrics = {
            str(name): _metric(str(name), value, counted.to(loss.device)) for name, value in computed.items()
        }
        if same := logged.keys() & metrics.keys():
            raise EvaluationMetricsError(
                f"compute_metrics: {', '.join(sorted(same))} is the name of a loss. Use another name."
            )
        return loss, tokens, {**logged, **metrics}

    return measured


def _metric(name: str, value: Any, counted: torch.Tensor) -> torch.Tensor:
    """Return sum and count of a metric as float32, on the device of `counted`, which is False to leave a number out.

    A microbatch that fills the last batch of a set has no token in the loss, so that a mean over its tokens is NaN.
    """
    try:
        metric = torch.as_tensor(value, dtype=torch.float32, device=counted.device).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise EvaluationMetricsError(
            f"compute_metrics: {name} is a {type(value).__name__}, not a number. Return a number, or a tensor of sum "
            "and count."
        ) from error
    if metric.numel() not in (1, 2):
        raise EvaluationMetricsError(
            f"compute_metrics: {name} has {metric.numel()} elements. Return a number, or a tensor of sum and count."
        )
    total, count = metric.reshape(-1) if metric.numel() == 2 else (metric.reshape(()), counted.float())
    return torch.stack([torch.where(count == 0, 0.0, total), count])
