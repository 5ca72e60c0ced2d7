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
    read_jsonl,
)


def kinds(sinks):
    return [type(sink).__name__ for sink in sinks]


def test_sinks_match_the_config(tmp_path):
    assert kinds(build_sinks(LoggerConfig())) == ["ConsoleSink"]
    sinks = build_sinks(LoggerConfig(), jsonl=tmp_path / "metrics.jsonl")
    assert [type(sink) for sink in sinks] == [ConsoleSink, JsonlSink]
    for sink in sinks:
        sink.close()
    assert build_sinks(LoggerConfig(skip_train_metrics_log=True), jsonl=tmp_path / "x") == []


@pytest.mark.parametrize("enabled", [False, True])
def test_throughput_on_the_console_only_when_enabled(enabled):
    stream = io.StringIO()
    sinks = build_sinks(LoggerConfig(log_throughput=enabled), stream=stream)
    with Metrics(sinks, flops_per_token=1.0) as metrics:
        metrics.record(1, {}, tokens=1)
    assert ("throughput per GPU" in stream.getvalue()) is enabled


def test_tensorboard_gets_the_enabled_groups(tmp_path):
    pytest.importorskip("tensorboard")
    from test_tensorboard import scalars

    def tags(**options):
        folder = tmp_path / "-".join(options)
        sinks = build_sinks(LoggerConfig(tensorboard_dir=str(folder), **options), stream=io.StringIO())
        with Metrics(sinks, log_interval=1) as metrics:
            metrics.record(1, {"lm loss": 1.0, "loss-scale": 2.0})
            metrics.evaluation(1, {"lm loss": 1.0})
        return set(scalars(folder))

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


def test_tensorboard_gets_every_step_of_a_log_interval_with_many_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    config = LoggerConfig(tensorboard_dir=str(tmp_path), tensorboard_queue_size=100)
    with Metrics(build_sinks(config, stream=io.StringIO()), log_interval=50) as metrics:
        for step in range(1, 101):
            metrics.record(step, {f"metric {number}": 1.0 for number in range(15)})
    assert metrics.failures == ()


ALWAYS = {
    "lm loss", "load_balancing_loss", "learning-rate", "decoupled-learning-rate", "skipped-train-samples", "batch-size",
    "loss-scale", "grad-norm", "num-zeros", "params-norm", "max-attention-logit", "mtp_1 loss", "mtp_1_acceptance_rate",
}  # fmt: skip
AT_LOG_INTERVALS = {
    "iteration-time", "world-size", "time/total", "time/remaining_estimate", "time/tokens", "time/samples",
    "time/batches", "memory/mem-allocated-gigabytes", "iter-energy/gpu", "power/gpu", "l2_norm/grad/global",
    "throughput/batches_per_sec", "throughput/samples_per_sec", "throughput/tokens_per_sec",
    "throughput/device/batches_per_sec", "throughput/device/samples_per_sec", "throughput/device/tokens_per_sec",
    "throughput/micro_batch_size", "throughput/global_batch_size", "throughput/tflops", "throughput/tflops/device",
    "throughput/mfu",
}  # fmt: skip
NOT_AGAINST_SAMPLES = {"iteration-time", "decoupled-learning-rate", "skipped-train-samples"}


def test_every_tag_of_a_run_is_there_and_keeps_to_tensorboards_interval(tmp_path, clock):
    pytest.importorskip("tensorboard")
    from test_tensorboard import scalars

    on = [
        name for name in vars(LoggerConfig()) if name.startswith("log_") and name.endswith("_to_tensorboard")
    ]
    config = LoggerConfig(
        tensorboard_dir=str(tmp_path / "board"), tensorboard_log_interval=3, **dict.fromkeys(on, True)
    )
    sinks = build_sinks(config, jsonl=tmp_path / "metrics.jsonl", stream=io.StringIO())
    measured = {"memory/mem-allocated-gigabytes": 1.0, "iter-energy/gpu": 1.0, "power/gpu": 1.0}
    with Metrics(
        sinks, log_interval=2, total_steps=12, clock=clock, flops_per_token=1.0, peak_tflops=1.0,
        micro_batch_size=2, time_unit="hours", samplers=[lambda step: measured],
    ) as metrics:  # fmt: skip
        for step in range(1, 13):
            clock.now += 1
            norms = {} if step % 2 else {"l2_norm/grad/global": 1.0}
            given = dict.fromkeys(ALWAYS - {"batch-size"}, 1.0) | norms
            metrics.record(step, given, samples=8, tokens=80)
    steps = {tag: [step for step, _ in points] for tag, points in scalars(tmp_path / "board").items()}
    expected = {tag: [3, 6, 9, 12] for tag in ALWAYS} | {tag: [6, 12] for tag in AT_LOG_INTERVALS}
    twins = {
        f"{tag} vs samples": [8 * step for step in at]
        for tag, at in expected.items()
        if "/" not in tag and tag not in NOT_AGAINST_SAMPLES
    }
    assert steps == expected | twins
    rows = list(read_jsonl(tmp_path / "metrics.jsonl"))
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert set(rows[-1]) == ALWAYS | AT_LOG_INTERVALS | {"step", "time", "samples vs steps"}
    assert [rows[-1][f"time/{what}"] for what in ("tokens", "samples", "batches")] == [960.0, 96.0, 12.0]
    sizes = [rows[-1][f"throughput/{what}_batch_size"] for what in ("micro", "global")]
    assert sizes == [2.0, 8.0]


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


def test_samplers_and_reductions_match_the_config():
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
