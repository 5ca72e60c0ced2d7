"""Comet without a server: contents of its archive."""

import json
import math
import zipfile

import pytest

pytest.importorskip("comet_ml")

import comet_ml

from mb_metrics import BackgroundSink, CometSink, Metrics


def archives(folder):
    """Return experiment and messages of each archive, oldest first."""
    found = []
    for path in sorted(folder.glob("*.zip"), key=lambda path: path.stat().st_mtime_ns):
        with zipfile.ZipFile(path) as archive:
            lines = archive.read("messages.json").decode().splitlines()
            found.append((json.loads(archive.read("experiment.json")), [json.loads(line) for line in lines]))
    return found


def logged(messages):
    metrics = [message["payload"]["metric"] for message in messages if message["type"] == "metric_msg"]
    return [(metric["step"], metric["metricName"], metric["metricValue"]) for metric in metrics]


def others(messages):
    values = [message["payload"] for message in messages if message["type"] == "log_other"]
    return {value["key"]: value["value"] for value in values}


@pytest.fixture
def sink(tmp_path, monkeypatch):
    monkeypatch.setenv("COMET_API_KEY", "0123456789" * 4)
    monkeypatch.setenv("COMET_LOGGING_CONSOLE", "ERROR")

    def make(resume_step=None, **more):
        return CometSink(
            "gpt",
            name="one",
            workspace="team",
            tags=["a"],
            folder=tmp_path / "comet",
            run_file=tmp_path / "comet_run.json",
            resume_step=resume_step,
            **more,
        )

    return make


def test_what_is_recorded_is_in_the_archive(sink, tmp_path):
    config = {"train": {"lr": 0.1}, "tokenizer": {"hf_token": "very secret"}}
    with Metrics([BackgroundSink(sink(config=config), close_seconds=60)], log_interval=100) as metrics:
        for step in (1, 2):
            values = {
                "lm loss": math.nan if step == 2 else -1.0,
                "mtp_1 loss": 2.0,
                "load_balancing_loss": 0.5,
            }
            metrics.record(step, values, consumed_samples=8 * step)
        metrics.evaluation(2, {"lm loss": 0.0})
    assert not metrics.failures
    ((experiment, messages),) = archives(tmp_path / "comet")
    wanted = ("lm loss", "mtp_1 loss", "load_balancing_loss", "samples vs steps", "lm loss validation")
    assert sorted(point for point in logged(messages) if point[1] in wanted) == [
        (1, "lm loss", -1.0),
        (1, "load_balancing_loss", 0.5),
        (1, "mtp_1 loss", 2.0),
        (1, "samples vs steps", 8.0),
        (2, "lm loss", "NaN"),
        (2, "lm loss validation", 0.0),
        (2, "load_balancing_loss", 0.5),
        (2, "mtp_1 loss", 2.0),
        (2, "samples vs steps", 16.0),
    ]
    assert (experiment["project_name"], experiment["workspace"], experiment["tags"]) == ("gpt", "team", ["a"])
    assert others(messages)["Name"] == "one"
    parameters = [message["payload"]["param"] for message in messages if message["type"] == "parameter_msg"]
    assert {"train.lr": 0.1, "tokenizer.hf_token": "<masked>"}.items() <= {
        parameter["paramName"]: parameter["paramValue"] for parameter in parameters
    }.items()
    assert "0123456789" * 4 not in json.dumps([experiment, messages])


def test_a_resumed_job_continues_the_same_experiment_without_duplicates(sink, tmp_path):
    for steps, resume_step in ((range(1, 8), 0), (range(5, 11), 4)):
        with Metrics([sink(resume_step)], log_interval=100) as metrics:
            for step in steps:
                metrics.record(step, {"lm loss": float(step)})
        assert not metrics.failures
    (first, earlier), (second, later) = archives(tmp_path / "comet")
    assert first["offline_id"] == second["offline_id"]
    losses = [(step, value) for step, name, value in logged(earlier + later) if name == "lm loss"]
    assert losses == [(step, step) for step in range(1, 11)]
    assert others(later)["mb_metrics.repeated_steps"] == "5 to 7"


def test_an_evaluation_that_a_killed_job_has_not_logged_is_logged_by_the_resumed_one(sink, tmp_path):
    """Its step is logged already, and is not logged again."""
    first = Metrics([sink(0)], log_interval=1)
    for step in (1, 2, 3, 4):
        first.record(step, {"loss": 1.0})
        if step == 2:
            first.evaluation(2, {"loss": 5.0})
    first.close()  # before the evaluation at step 4
    with Metrics([sink(1)], log_interval=1) as metrics:
        for step in (2, 3, 4):
            metrics.record(step, {"loss": 2.0})
            if step != 3:
                metrics.evaluation(step, {"loss": 6.0})
    values = [
        point
        for _, messages in archives(tmp_path / "comet")
        for point in logged(messages)
        if "loss" in point[1]
    ]
    assert [(step, value) for step, name, value in values if name == "loss validation"] == [
        (2, 5.0),
        (4, 6.0),
    ]
    assert [(step, value) for step, name, value in values if name == "loss"] == [
        (each, 1.0) for each in (1, 2, 3, 4)
    ]


@pytest.fixture
def host(tmp_path, sink):
    """The running experiment of a program, with its own metrics."""
    experiment = comet_ml.start(
        project_name="theirs",
        online=False,
        experiment_config=comet_ml.ExperimentConfig(
            offline_directory=str(tmp_path / "theirs"), name="their name"
        ),
    )
    yield experiment
    experiment.end()


def record(sink, host):
    with Metrics([sink], log_interval=2) as metrics:
        for step in (1, 2):
            metrics.record(step, {"loss": float(step)})
        metrics.evaluation(2, {"loss": 3.0})
    assert not metrics.failures
    assert comet_ml.get_running_experiment() is host
    assert not host.ended


def test_metrics_are_added_to_the_experiment_of_the_program(host, tmp_path):
    host.log_metric("theirs", 1.0, step=70)
    record(CometSink(run=host), host)
    host.log_metric("theirs", 2.0)
    host.end()
    ((experiment, messages),) = archives(tmp_path / "theirs")
    values = logged(messages)
    assert [point for point in values if point[1] == "mb_metrics/loss"] == [
        (1, "mb_metrics/loss", 1.0),
        (2, "mb_metrics/loss", 2.0),
    ]
    assert (2, "mb_metrics/loss validation", 3.0) in values
    assert [point for point in values if point[1] == "theirs"] == [(70, "theirs", 1.0), (70, "theirs", 2.0)]
    assert (experiment["project_name"], others(messages)["Name"]) == ("theirs", "their name")


def test_a_second_experiment_leaves_the_one_of_the_program_running(host, sink, tmp_path):
    record(sink(), host)
    host.log_metric("theirs", 1.0, step=1)
    host.end()
    ((_, ours),) = archives(tmp_path / "comet")
    ((_, theirs),) = archives(tmp_path / "theirs")
    assert [point[:2] for point in logged(ours) if point[1] == "loss"] == [(1, "loss"), (2, "loss")]
    assert [point for point in logged(theirs) if "loss" in point[1]] == []


def test_a_sink_has_either_a_run_or_a_project(host):
    with pytest.raises(ValueError, match="neither project nor run is given"):
        CometSink()
    with pytest.raises(ValueError, match="tags cannot be combined with run"):
        CometSink(run=host, tags=["a"])
    with pytest.raises(ValueError, match=r"prefix .* requires run"):
        CometSink("gpt", prefix="a")
