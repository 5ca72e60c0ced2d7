import io

import pytest

from mb_metrics import ConsoleSink, JsonlSink, LoggerConfig, Metrics, build_sinks


def kinds(sinks):
    return [type(sink).__name__ for sink in sinks]


def test_sinks_are_what_the_config_asks_for(tmp_path):
    assert kinds(build_sinks(LoggerConfig())) == ["ConsoleSink"]
    sinks = build_sinks(LoggerConfig(), jsonl=tmp_path / "metrics.jsonl")
    assert [type(sink) for sink in sinks] == [ConsoleSink, JsonlSink]
    assert build_sinks(LoggerConfig(skip_train_metrics_log=True), jsonl=tmp_path / "x") == []


@pytest.mark.parametrize("asked", [False, True])
def test_throughput_on_the_console_only_when_asked(asked):
    stream = io.StringIO()
    sinks = build_sinks(LoggerConfig(log_throughput=asked), stream=stream)
    with Metrics(sinks, flops_per_token=1.0) as metrics:
        metrics.record(1, {}, tokens=1)
    assert ("throughput per GPU" in stream.getvalue()) is asked


def test_tensorboard_gets_the_groups_that_were_asked_for(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def tags(**wishes):
        folder = tmp_path / "-".join(wishes)
        sinks = build_sinks(LoggerConfig(tensorboard_dir=str(folder), **wishes), stream=io.StringIO())
        with Metrics(sinks, log_interval=1) as metrics:
            metrics.record(1, {"lm loss": 1.0, "loss-scale": 2.0})
            metrics.evaluation(1, {"lm loss": 1.0})
        events = EventAccumulator(str(folder))
        events.Reload()
        return set(events.Tags()["scalars"])

    plain = {"lm loss", "loss-scale", "lm loss validation"}
    assert tags(tensorboard_log_interval=1) == plain
    assert tags(log_loss_scale_to_tensorboard=False) == plain - {"loss-scale"}
    assert tags(log_validation_ppl_to_tensorboard=True) == plain | {"lm loss validation ppl"}
    assert tags(log_timers_to_tensorboard=True) == plain | {"iteration-time"}
    assert tags(log_world_size_to_tensorboard=True) == plain | {"world-size"}
    assert tags(log_throughput_to_tensorboard=True) == plain | {
        "throughput/batches_per_sec",
        "throughput/device/batches_per_sec",
    }
