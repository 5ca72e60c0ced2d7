"""Losses inside a model, of routers and of multi-token prediction, at the end of a log interval. Adapter for torch."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch.distributed import ProcessGroup

from mb_metrics.flops.model_shape import FlopsModelShape
from mb_metrics.recorder.moe import ExpertTracker, PredictionTracker, expert_metrics, prediction_metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryLosses:
    """Reader of the trackers that Megatron's routers and prediction layers write to."""

    model: object
    """Model section or config, with Megatron's field names."""
    pp_group: ProcessGroup | None
    """Pipeline stages."""
    dp_group: ProcessGroup | None
    """Data-parallel ranks, without context parallelism."""
    device: torch.device | str
    """Device of this rank."""
    expert_tracker: ExpertTracker | None = None
    """Megatron's tracker of routers; None: the model has no experts."""
    prediction_tracker: PredictionTracker | None = None
    """Megatron's tracker of multi-token prediction; None: the model has none."""

    def __call__(self, *, step: int, microbatches: int) -> dict[str, torch.Tensor]:
        """Return the losses since the last call as device tensors, and reset the trackers.

        Collective over the pipeline and the data-parallel ranks; see `expert_metrics` and `prediction_metrics`.
        """
        found: dict[str, torch.Tensor] = {}
        if self.expert_tracker is not None:
            found |= expert_metrics(
                self.model,
                self.expert_tracker,
                microbatches=microbatches,
                pp_group=self.pp_group,
                dp_group=self.dp_group,
                device=self.device,
            )
        if self.prediction_tracker is not None:
            found |= prediction_metrics(self.prediction_tracker, microbatches=microbatches, step=step)
        return found


def build_auxiliary_losses(
    model: object,
    *,
    pp_group: ProcessGroup | None,
    dp_group: ProcessGroup | None,
    device: torch.device | str,
) -> AuxiliaryLosses:
    """Return the reader of Megatron's trackers. Imports Megatron only for a model that writes to them."""
    shape = FlopsModelShape(model)
    experts, predictions = shape.flag("num_moe_experts"), shape.prediction_depths
    trackers: Any = import_module("mb_metrics.mcore") if experts or predictions else None
    return AuxiliaryLosses(
        model=model,
        pp_group=pp_group,
        dp_group=dp_group,
        device=device,
        expert_tracker=trackers.megatron_expert_tracker() if experts else None,
        prediction_tracker=trackers.megatron_prediction_tracker() if predictions else None,
    )
