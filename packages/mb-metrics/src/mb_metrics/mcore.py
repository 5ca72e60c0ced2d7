"""Adapter for Megatron Core: its process-wide trackers."""

from typing import Any

from megatron.core.transformer.moe.moe_logging import MoEMetricsTracker, get_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper


def megatron_expert_tracker() -> MoEMetricsTracker:
    """Return the tracker that the routers of this process write to."""
    return get_moe_metrics_tracker()


def megatron_prediction_tracker() -> Any:
    """Return the tracker that the multi-token prediction of this process writes to."""
    return MTPLossLoggingHelper
