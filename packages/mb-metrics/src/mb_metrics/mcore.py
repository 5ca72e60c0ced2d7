"""The door to Megatron Core: its process-wide trackers and groups."""

from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

from mb_metrics.moe import ExpertTracker, PredictionTracker


def megatron_expert_tracker() -> ExpertTracker:
    """Return the tracker into which this process's routers write."""
    tracker: ExpertTracker = get_moe_metrics_tracker()
    return tracker


def megatron_prediction_tracker() -> PredictionTracker:
    """Return the tracker into which this process's multi-token prediction writes."""
    tracker: PredictionTracker = MTPLossLoggingHelper
    return tracker


def megatron_groups() -> ProcessGroupCollection:
    """Return the process groups of Megatron's parallel state."""
    return ProcessGroupCollection.use_mpu_process_groups()
