"""Logger for torchtitan. It does not import torchtitan, whose loggers have the methods `log` and `close`."""

from collections.abc import Mapping

from mb_metrics import names
from mb_metrics.integrations.step_logger import HostLogger
from mb_metrics.recorder.metrics import Metrics
from mb_metrics.recorder.recorded_steps import Value

_NAMES = {
    "throughput(tps)": "throughput/device/tokens_per_sec",
    "tflops": names.TFLOPS_PER_DEVICE,
    "mfu(%)": names.MFU,
}
"""Metrics of torchtitan that `Metrics` has under another name; MFU is a percentage in torchtitan."""


class TorchtitanLogger(HostLogger):
    """Logger with the interface of torchtitan's `components.metrics.BaseLogger` that records to `Metrics`.

    Set it as `trainer.metrics_processor.logger`, or add it to the loggers of a trainer that has some:
    `trainer.metrics_processor.logger.add_logger(TorchtitanLogger(metrics))`. The metrics keep torchtitan's names,
    except throughput, TFLOP/s and MFU, which reports read under the names of `Metrics`. `close` closes the metrics.

    Args:
        metrics: Recorder; with sinks on the rank on which torchtitan logs.
        start_step: Step of the checkpoint in a resumed run.
    """

    def __init__(self, metrics: Metrics, *, start_step: int = 0) -> None:
        super().__init__(metrics, start_step=start_step)

    def log(self, metrics: Mapping[str, Value], step: int) -> None:  # type: ignore[override]
        """Add metrics to a step."""
        named = {_NAMES.get(name, name): value for name, value in metrics.items()}
        percentage = metrics.get("mfu(%)")
        if isinstance(percentage, (int, float)):
            named[names.MFU] = percentage / 100
        super().log(named, step)
