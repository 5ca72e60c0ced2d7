"""Logger for Lightning.

Install it with `pip install "mb-metrics[lightning]"`.
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import Logger

from mb_metrics.integrations.step_logger import StepLogger
from mb_metrics.metrics import Metrics


class LightningLogger(Logger):  # type: ignore[misc]
    """Logger for `lightning.Trainer(logger=LightningLogger(metrics))` that records to `Metrics`.

    It records what the module logs with `self.log`, at every `log_every_n_steps` of the trainer, and the learning rate
    of a `LearningRateMonitor`. Lightning counts steps from 0; a record has the completed steps. Lightning calls the
    logger on rank 0 only, with numbers that it has read from the device.

    Use the recorder as a context manager around `trainer.fit`, which closes it.

    Args:
        metrics: Recorder of the steps.
        samples: Samples of an optimizer step, over all devices; None: not known.
        tokens: Tokens of an optimizer step, over all devices; None: not known.
        start_step: Step of the checkpoint in a resumed run.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        samples: int | None = None,
        tokens: int | None = None,
        start_step: int = 0,
    ) -> None:
        super().__init__()
        self._logger = StepLogger(metrics, samples=samples, tokens=tokens, start_step=start_step)

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "mb_metrics"

    @property
    def version(self) -> None:
        """None: the sinks decide where a run is stored."""
        return

    @property
    def experiment(self) -> Metrics:
        """The recorder."""
        return self._logger.metrics

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add metrics to a step.

        Raises:
            ValueError: the step is missing, or lower than the previous one.
        """
        if step is None:
            raise ValueError(
                "LightningLogger.log_metrics: no step is given (step=None), and records need one. Pass the number of "
                "steps before this one."
            )
        # the trainer adds the epoch when the step is done; callbacks log the learning rate before it
        self._logger.log(metrics, step + 1, ends_step="epoch" in metrics)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: sinks for trackers take the configuration of a run as `config=`."""

    def after_save_checkpoint(self, _checkpoint_callback: Any) -> None:
        """Write the steps before the current one, because a resumed run starts after the checkpoint."""
        self.experiment.flush()

    def finalize(self, _status: str) -> None:
        """Write the steps before the current one, to which `trainer.test` and `trainer.validate` may add metrics."""
        self.experiment.flush()
