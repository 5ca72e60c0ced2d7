"""Adapter for Megatron Core: its process-wide trackers and process groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

if TYPE_CHECKING:
    from mb_metrics.recorder.auxiliary_losses import ExpertTracker, PredictionTracker


def megatron_expert_tracker() -> ExpertTracker:
    """Return the tracker that the routers of this process write to."""
    tracker: ExpertTracker = get_moe_metrics_tracker()
    return tracker


def megatron_prediction_tracker() -> PredictionTracker:
    """Return the tracker that the multi-token prediction of this process writes to."""
    tracker: PredictionTracker = MTPLossLoggingHelper
    return tracker


def megatron_groups() -> ProcessGroupCollection:
    """Return the process groups of Megatron's parallel state."""
    return ProcessGroupCollection.use_mpu_process_groups()
