import io

import pytest

from mb_metrics import (
    ConsoleSink,
    JsonlSink,
    LoggerConfig,
    Metrics,
    build_reductions,
    build_samplers,
    build_sinks,
)


def kinds(sinks):
    return [type(sink).__name__ for sink in sinks]


def test_sinks_are_what_the_config_asks_for(tmp_path):
    assert kinds(build_sinks(LoggerConfig())) == ["ConsoleSink"]
    sinks = build_sinks(LoggerConfig(), jsonl=tmp_path / "metrics.jsonl")
    assert [type(sink) for sink in sinks] == [ConsoleSink, JsonlSink]
    for sink in sinks:
        sink.close()
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


def test_trackers_work_in_the_background_and_keep_their_run_in_the_run_folder(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    pytest.importorskip("comet_ml")
    monkeypatch.setenv("COMET_START_ONLINE", "0")
    (tmp_path / "comet").mkdir()
    monkeypatch.setenv("COMET_OFFLINE_DIRECTORY", str(tmp_path / "comet"))
    config = LoggerConfig(wandb_project="gpt", comet_project="gpt", comet_experiment_name="one")
    sinks = build_sinks(
        config, jsonl=tmp_path / "metrics.jsonl", stream=io.StringIO(), run_config={"a": {"b": 1}}
    )
    assert kinds(sinks) == ["ConsoleSink", "JsonlSink", "BackgroundSink", "BackgroundSink"]
    with Metrics(sinks) as metrics:
        metrics.record(1, {"lm loss": 1.0})
    assert not metrics.failures
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["comet", "comet_run.json", "metrics.jsonl", "wandb", "wandb_run.json"]


def test_samplers_and_reductions_are_what_the_config_asks_for():
    assert build_samplers(LoggerConfig()) == []
    assert build_reductions(LoggerConfig()) == {}
    pytest.importorskip("torch")
    config = LoggerConfig(
        log_memory_to_tensorboard=True,
        memory_keys={"num_ooms": "ooms", "allocated_bytes.all.peak": "peak-bytes"},
        log_device_memory_used=True,
        log_memory_interval=20,
    )
    (memory,) = build_samplers(config)
    assert memory(10) == {}
    assert set(memory(20)) <= set(build_reductions(config))
    assert build_reductions(config) == dict.fromkeys(
        ["memory/ooms", "memory/peak-gigabytes", "memory/mem-device-used-gigabytes"], "max"
    )
    (energy,) = build_samplers(LoggerConfig(log_energy=True), start_step=4)
    assert set(energy(6)) == {"iter-energy/gpu", "power/gpu"}
    assert build_samplers(LoggerConfig(skip_train_metrics_log=True, log_memory_to_tensorboard=True)) == []
