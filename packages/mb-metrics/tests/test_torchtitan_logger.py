"""Logger for torchtitan: its protocol as a stub, and the trainer's own classes where torchtitan is installed."""

import pytest

from mb_metrics import Metrics, TorchtitanLogger


class BaseLogger:
    """A stub of `torchtitan.components.metrics.BaseLogger` of torchtitan 0.3, whose import needs its dependencies."""

    def log(self, metrics, step): ...

    def close(self): ...


class LoggerContainer(BaseLogger):
    """A stub of torchtitan's container of several loggers."""

    def __init__(self):
        self._loggers = []

    def add_logger(self, logger):
        self._loggers.append(logger)

    def log(self, metrics, step):
        for logger in self._loggers:
            logger.log(metrics, step)

    def close(self):
        for logger in self._loggers:
            logger.close()


def titans_container():
    metrics = pytest.importorskip("torchtitan.components.metrics", reason="needs torchtitan")
    return metrics.LoggerContainer()


@pytest.mark.parametrize("container", [LoggerContainer, titans_container])
def test_what_torchtitan_logs_is_recorded(container, recorder, clock):
    container = container()
    container.add_logger(TorchtitanLogger(Metrics([recorder], log_interval=10, clock=clock)))
    for step, seconds in ((1, 1.0), (10, 18.0)):  # torchtitan logs the first step, then every tenth
        clock.now += seconds
        container.log(
            {
                "loss_metrics/global_avg_loss": 8.0 / step,
                "grad_norm": 1.5,
                "throughput(tps)": 5000.0,
                "tflops": 100.0,
                "mfu(%)": 40.0,
            },
            step,
        )
    container.log({"validation_metrics/loss": 3.0}, 10)
    container.close()
    assert recorder.closed == 1
    (interval,) = recorder.intervals
    assert (recorder.steps, interval.rates.step_seconds) == ([1, 10], 1.9)
    assert interval.mean_losses == {"loss_metrics/global_avg_loss": 4.4, "validation_metrics/loss": 3.0}
    expected = {
        "grad_norm": 1.5,
        "throughput/device/tokens_per_sec": 5000.0,
        "throughput/tflops/device": 100.0,
        "throughput/mfu": 0.4,
        "validation_metrics/loss": 3.0,
    }
    assert expected.items() <= interval.last.values.items()


def test_the_stub_has_the_methods_of_torchtitan():
    metrics = pytest.importorskip("torchtitan.components.metrics", reason="needs torchtitan")
    assert {"log", "close"} <= {name for name in vars(metrics.BaseLogger) if not name.startswith("_")}


def test_a_resumed_run_starts_at_its_step(recorder, clock):
    logger = TorchtitanLogger(Metrics([recorder], log_interval=10, clock=clock), start_step=100)
    clock.now += 10
    logger.log({"mfu(%)": None}, 110)
    logger.close()
    assert recorder.intervals[0].rates.step_seconds == 1.0


def test_what_cannot_be_recorded_does_not_end_the_training(recorder, caplog):
    logger = TorchtitanLogger(Metrics([recorder], log_interval=10))
    logger.log({"loss": 2.0, "note": "text"}, 10)
    logger.log({"validation_metrics/loss": 3.0}, 9)
    logger.close()
    assert recorder.steps == [10]
    assert caplog.messages == ["metrics: note not recorded: no numbers"]
