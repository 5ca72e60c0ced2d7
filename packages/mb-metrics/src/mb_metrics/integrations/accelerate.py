"""Tracker for Hugging Face Accelerate.

Install it with `pip install "mb-metrics[accelerate]"`.
"""

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from mb_metrics.integrations.step_logger import HostLogger
from mb_metrics.recorder.metrics import Metrics
from mb_metrics.recorder.recorded_steps import Value


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]
    """Tracker for `Accelerator(log_with=AccelerateTracker(metrics))` that records to `Metrics`.

    `accelerator.log(values, step=step)` adds metrics to a step, and the next one without `step`;
    `accelerator.end_training()` closes the metrics. Accelerate calls the tracker on the main process only.

    Args:
        metrics: Recorder of the steps.
        samples: Samples of a step, over all devices; None: not known.
        tokens: Tokens of a step, over all devices; None: not known.
        start_step: Step of the checkpoint in a resumed run.
    """

    name = "mb_metrics"
    requires_logging_directory = False

    def __init__(
        self,
        metrics: Metrics,
        *,
        samples: int | None = None,
        tokens: int | None = None,
        start_step: int = 0,
    ) -> None:
        super().__init__()
        self._logger = HostLogger(metrics, samples=samples, tokens=tokens, start_step=start_step)

    @property
    def tracker(self) -> Metrics:
        """The recorder."""
        return self._logger.metrics

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Do nothing: sinks for trackers take the configuration of a run as `config=`."""

    def log(self, values: Mapping[str, Value], step: int | None = None, **_others: Any) -> None:
        """Add metrics to a step; without a step, to the next one. What is not a number is left out, with a warning."""
        self._logger.log(values, step)

    def finish(self) -> None:
        """Close the metrics."""
        self._logger.close()
