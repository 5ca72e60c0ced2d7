"""Losses inside a model, of routers and of multi-token prediction, at the end of a log interval. Adapter for torch."""

from importlib import import_module
from typing import Any, cast

import torch
from torch.distributed import ProcessGroup

from mb_metrics.flops_model_shape import FlopsModelShape
from mb_metrics.moe import ExpertTracker, PredictionTracker, expert_metrics, prediction_metrics
from mb_metrics.training_context import ModelGroups


class AuxiliaryLosses:
    """Reader of the trackers that Megatron's routers and prediction layers write to.

    Args:
        model: Model section or config, with Megatron's field names.
        groups: Process groups.
        device: Device of this rank.
        expert_tracker: Megatron's tracker of routers; None: the model has no experts.
        prediction_tracker: Megatron's tracker of multi-token prediction; None: the model has none.
    """

    def __init__(
        self,
        model: object,
        *,
        groups: ModelGroups,
        device: torch.device | str,
        expert_tracker: ExpertTracker | None = None,
        prediction_tracker: PredictionTracker | None = None,
    ) -> None:
        self._model, self._groups, self._device = model, groups, device
        self._expert_tracker, self._prediction_tracker = expert_tracker, prediction_tracker

    def __call__(self, *, step: int, microbatches: int) -> dict[str, torch.Tensor]:
        """Return the losses since the last call as device tensors, and reset the trackers.

        Collective over the pipeline and the data-parallel ranks; see `expert_metrics` and `prediction_metrics`.
        """
        found: dict[str, torch.Tensor] = {}
        if self._expert_tracker is not None:
            found |= expert_metrics(
                self._model,
                self._expert_tracker,
                microbatches=microbatches,
                pp_group=cast("ProcessGroup", self._groups.pp),
                dp_group=cast("ProcessGroup", self._groups.dp),
                device=self._device,
            )
        if self._prediction_tracker is not None:
            found |= prediction_metrics(self._prediction_tracker, microbatches=microbatches, step=step)
        return found


def build_auxiliary_losses(
    model: object, *, groups: ModelGroups, device: torch.device | str
) -> AuxiliaryLosses:
    """Return the reader of Megatron's trackers. Imports Megatron only for a model that writes to them."""
    shape = FlopsModelShape(model)
    experts, predictions = shape.flag("num_moe_experts"), shape.flag("mtp_num_layers")
    trackers: Any = import_module("mb_metrics.mcore") if experts or predictions else None
    return AuxiliaryLosses(
        model,
        groups=groups,
        device=device,
        expert_tracker=trackers.megatron_expert_tracker() if experts else None,
        prediction_tracker=trackers.megatron_prediction_tracker() if predictions else None,
    )
