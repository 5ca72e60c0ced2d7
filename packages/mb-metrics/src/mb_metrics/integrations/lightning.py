"""Logger for Lightning.

Install it with `pip install "mb-metrics[lightning]"`.
"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import Logger

from mb_metrics.integrations.step_logger import HostLogger
from mb_metrics.recorder.metrics import Metrics


class LightningLogger(Logger):  # type: ignore[misc]
    """Logger for `lightning.Trainer(logger=LightningLogger(metrics))` that records to `Metrics`.

    It records what the module logs with `self.log`, at every `log_every_n_steps` of the trainer, and the learning rate
    of a `LearningRateMonitor`. Lightning counts steps from 0; a record has the completed steps. Steps of another
    `trainer.fit` follow those of the first. Lightning calls the logger on rank 0 only, with numbers that it has read
    from the device.

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
        self._logger = HostLogger(metrics, samples=samples, tokens=tokens, start_step=start_step)
        self._is_fitted = False
        self._earlier_steps = 0

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
        """Add metrics to a step; those of `trainer.test` and `trainer.validate` after training, to the last one."""
        number = self._logger.last_step + 1 if step is None else self._earlier_steps + step + 1
        if self._is_fitted:
            number = self._step_after_fit(metrics, number)
        # the trainer adds the epoch when the step is done; callbacks log the learning rate before it
        ends_step = step is None or ("epoch" in metrics and not self._is_fitted)
        self._logger.log(metrics, number, ends_step=ends_step)

    def _step_after_fit(self, metrics: Mapping[str, float], number: int) -> int:
        """Return the step of metrics after `trainer.fit`: those of the same names are of another fit."""
        last = self._logger.last_step
        if not (metrics.keys() & self._logger.current_names) - {"epoch"}:
            return last
        self._is_fitted = False
        if number <= last:  # of a new trainer, which counts from 0
            self._earlier_steps = last
            return last + number
        return number

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: sinks for trackers take the configuration of a run as `config=`."""

    def after_save_checkpoint(self, _checkpoint_callback: Any) -> None:
        """Write the steps before the current one, because a resumed run starts after the checkpoint."""
        self.experiment.flush()

    def finalize(self, _status: str) -> None:
        """Write the steps before the current one, to which `trainer.test` and `trainer.validate` may add metrics."""
        self._is_fitted = True
        self.experiment.flush()
