"""A real MLflow server on localhost, with sqlite: started, killed in the middle, started again."""

import io
import json
import math
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

pytest.importorskip("mlflow")

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE
from mlflow.tracking import MlflowClient

from mb_metrics import BackgroundSink, LoggerConfig, Metrics, MetricsRow, MlflowSink, build_sinks

# What `mlflow server` runs, in one process: its own start takes three times as long.
SERVER = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()  # ends with the test process
from mlflow.server import app
from mlflow.server.handlers import initialize_backend_stores
folder, port = sys.argv[1:]
initialize_backend_stores(f"sqlite:///{folder}/mlflow.db", default_artifact_root=f"{folder}/artifacts")
app.run("127.0.0.1", int(port), threaded=True)
"""


class Server:
    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri, self.folder, self.process = f"http://127.0.0.1:{self.port}", folder, None

    def start(self):
        command = [sys.executable, "-c", SERVER, str(self.folder), str(self.port)]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                return urllib.request.urlopen(f"{self.uri}/health", timeout=5).read()
            except OSError:
                time.sleep(0.2)
        raise TimeoutError((self.folder / "server.log").read_text())

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # MLflow's own tries take minutes
        server = Server(tmp_path_factory.mktemp("mlflow"))
        try:
            server.start()
            yield server
        finally:
            server.kill()


@pytest.fixture
def client(server):
    return MlflowClient(tracking_uri=server.uri)


def the_run(client, experiment):
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return run


def points(client, run, key):
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, key)]


def record(sinks, steps, scale=1.0):
    with Metrics(sinks, log_interval=2) as metrics:
        for step in steps:
            metrics.record(step, {"lm loss": scale * step}, consumed_samples=8 * step)


def test_what_is_recorded_is_read_back(server, client, tmp_path):
    sink = MlflowSink(
        "whole",
        run_name="one",
        tracking_uri=server.uri,
        tags={"team": "a"},
        description="a test",
        config={"train": {"lr": 0.1}, "comet_api_key": "hidden!"},
    )
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "weights").write_text("w")
    with Metrics([sink], log_interval=1) as metrics:
        values = {"lm loss": math.nan, "load_balancing_loss": -1.0, "mtp_1 loss": 2.0, "moe/a/b": 3.0}
        metrics.record(1, values, samples=8)
        metrics.evaluation(1, {"lm loss": 0.0})
        metrics.keep_file(tmp_path / "ckpt")
    assert not metrics.failures
    run = the_run(client, "whole")
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
    assert run.data.params == {"train.lr": "0.1", "comet_api_key": "<masked>"}
    tags = {name: value for name, value in run.data.tags.items() if name in ("team", "mlflow.note.content")}
    assert tags == {"team": "a", "mlflow.note.content": "a test"}
    assert math.isnan(run.data.metrics["lm loss"])
    expected = {"load_balancing_loss": -1.0, "mtp_1 loss": 2.0, "moe/a_b": 3.0, "lm loss validation ppl": 1.0}
    assert {name: run.data.metrics[name] for name in expected} == expected
    assert run.data.metrics["samples vs steps"] == 8.0
    assert [item.path for item in client.list_artifacts(run.info.run_id, "ckpt")] == ["ckpt/weights"]


def test_a_row_may_have_more_metrics_than_a_request(server, client):
    with Metrics([MlflowSink("wide", tracking_uri=server.uri)], log_interval=2) as metrics:
        metrics.record(1, {f"m{i}": i for i in range(1500)})
        metrics.record(2, {f"m{i}": i for i in range(900)})
    run = the_run(client, "wide")
    assert (points(client, run, "m0"), points(client, run, "m1499")) == ([(1, 0), (2, 0)], [(1, 1499)])


def test_a_resumed_job_continues_the_same_run_without_duplicates(server, client, tmp_path):
    def sink(resume_step):
        file = tmp_path / "mlflow_run.json"
        config = {"a": resume_step, "b": 1, f"new{resume_step}": 1}
        return MlflowSink(
            "resumed", tracking_uri=server.uri, run_file=file, resume_step=resume_step, config=config
        )

    record([sink(0)], range(1, 8))
    record([sink(4)], range(5, 11), scale=1.0)
    run = the_run(client, "resumed")
    assert points(client, run, "lm loss") == [(step, step) for step in range(1, 11)]
    assert run.data.tags["mb_metrics.repeated_steps"] == "5 to 7"
    assert run.data.params == {"a": "0", "b": "1", "new0": "1", "new4": "1"}


def test_a_run_whose_parameters_could_not_be_logged_is_not_created_twice(server, client, monkeypatch):
    log_batch, failed = MlflowClient.log_batch, []

    def fail_once(self, run, **content):
        if content.get("params") and not failed:
            failed.append(run)
            raise MlflowException("down", error_code=TEMPORARILY_UNAVAILABLE)
        return log_batch(self, run, **content)

    monkeypatch.setattr(MlflowClient, "log_batch", fail_once)
    sink = MlflowSink("created", tracking_uri=server.uri, config={"a": 1}, resume_step=0)
    row = MetricsRow(step=1, time=1.0, values={"loss": 2.0}, skipped=False, consumed_samples=None)
    with pytest.raises(ConnectionError):
        sink.write_rows([row])
    sink.write_rows([row])
    run = the_run(client, "created")
    assert ([run.info.run_id], points(client, run, "loss"), run.data.params) == (
        failed,
        [(1, 2.0)],
        {"a": "1"},
    )


def test_an_evaluation_that_a_killed_job_has_not_logged_is_logged_by_the_resumed_one(
    server, client, tmp_path
):
    """Its step is logged already, and is not logged again."""

    def record_all(steps, evaluated, resume_step, loss):
        sink = MlflowSink(
            "evaluated", tracking_uri=server.uri, run_file=tmp_path / "run.json", resume_step=resume_step
        )
        with Metrics([sink], log_interval=1) as metrics:
            for step in steps:
                metrics.record(step, {"loss": loss})
                if step in evaluated:
                    metrics.evaluation(step, {"loss": loss + 4.0})

    record_all([1, 2, 3, 4], [2], 0, 1.0)
    record_all([2, 3, 4], [2, 4], 1, 2.0)
    run = the_run(client, "evaluated")
    assert points(client, run, "loss validation") == [(2, 5.0), (4, 6.0)]
    assert points(client, run, "loss") == [(step, 1.0) for step in (1, 2, 3, 4)]


def test_a_resumed_job_continues_each_series_under_its_own_name(server, client, tmp_path):
    """Each metric has a value of its own, so that a series with two values has two metrics."""
    values = {"acc%": 1.0, "acc#": 2.0, "acc_": 3.0, "b/c": 4.0, "/b/c": 5.0}

    def record_step(step, names, resume_step):
        file = tmp_path / "mlflow_run.json"
        sink = MlflowSink("names", tracking_uri=server.uri, run_file=file, resume_step=resume_step)
        with Metrics([sink], log_interval=1) as metrics:
            metrics.record(step, {name: values[name] for name in names})
            if step == 1:
                metrics.evaluation(1, {"score%": 6.0})
            if step == 2:
                metrics.evaluation(2, {"score#": 7.0})

    record_step(1, ["acc%", "acc_", "b/c"], 0)
    record_step(2, ["acc#", "/b/c"], 1)
    record_step(3, [*values][::-1], 2)
    run = the_run(client, "names")
    series = [
        points(client, run, key)
        for key in run.data.metrics
        if key.startswith(("acc", "b/c", "score")) and "ppl" not in key
    ]
    steps = {1.0: (1, 3), 2.0: (2, 3), 3.0: (1, 3), 4.0: (1, 3), 5.0: (2, 3), 6.0: (1,), 7.0: (2,)}
    assert sorted(series) == sorted([(step, value) for step in steps[value]] for value in steps)


def test_a_run_that_an_exception_ended_is_shown_as_failed(server, client):
    metrics = Metrics([BackgroundSink(MlflowSink("failed", tracking_uri=server.uri))])
    metrics.record(1, {"lm loss": 1.0})
    with pytest.raises(KeyError), metrics:
        raise KeyError
    assert the_run(client, "failed").info.status == "FAILED"


def test_a_server_that_is_killed_and_comes_back_misses_nothing(server, client, caplog):
    sink = BackgroundSink(MlflowSink("outage", tracking_uri=server.uri), retry_seconds=0.1, close_seconds=60)
    with Metrics([sink], log_interval=1) as metrics:
        for step in range(1, 31):
            if step == 10:
                server.kill()
            if step == 20:
                while not metrics.failures:
                    time.sleep(0.01)
                server.start()
            metrics.record(step, {"lm loss": step})
    (failure,) = metrics.failures
    assert failure.dropped == 0
    assert isinstance(failure.first, ConnectionError)
    assert points(client, the_run(client, "outage"), "lm loss") == [(step, step) for step in range(1, 31)]


def test_a_server_that_is_down_from_the_start_raises_what_a_background_sink_waits_for(tmp_path):
    server = Server(tmp_path)
    with Metrics([MlflowSink("down", tracking_uri=server.uri)]) as metrics:
        metrics.record(1, {"lm loss": 1.0})
    assert isinstance(metrics.failures[0].first, ConnectionError)


def test_everything_comes_from_the_configuration(server, client, tmp_path):
    config = LoggerConfig(
        mlflow_experiment="configured",
        mlflow_run_name="one",
        mlflow_tracking_uri=server.uri,
        mlflow_tags={"team": "a"},
        mlflow_description="text",
        mlflow_log_artifacts=False,
    )
    sinks = build_sinks(config, folder=tmp_path, stream=io.StringIO(), run_config={"train": {"lr": 0.1}})
    with Metrics(sinks) as metrics:
        metrics.record(1, {"lm loss": 1.0})
        metrics.evaluation(1, {"lm loss": 1.0})
        metrics.keep_file(tmp_path)
    assert not metrics.failures
    run = the_run(client, "configured")
    assert run.data.metrics == {"lm loss": 1.0, "lm loss validation": 1.0}
    assert (run.info.run_name, run.data.params, run.data.tags["team"]) == ("one", {"train.lr": "0.1"}, "a")
    assert json.loads((tmp_path / "mlflow_run.json").read_text()) == {
        "id": run.info.run_id,
        "last_step": 1,
        "names": {name: name for name in run.data.metrics},
    }
    assert client.list_artifacts(run.info.run_id) == []


@pytest.fixture
def host(server, monkeypatch):
    """The active run of a program, with its own metrics."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    mlflow.set_experiment("theirs")
    with mlflow.start_run(run_name="their name") as run:
        mlflow.log_metric("theirs", 1.0, step=1)
        yield run


def test_metrics_are_added_to_the_run_of_the_program(host, client):
    record([BackgroundSink(MlflowSink(run=mlflow.active_run()))], range(1, 4))
    assert mlflow.active_run() is host
    mlflow.log_metric("theirs", 2.0, step=2)
    run = client.get_run(host.info.run_id)
    assert (run.info.run_name, run.info.status) == ("their name", "RUNNING")
    assert points(client, run, "mb_metrics/lm loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert points(client, run, "theirs") == [(1, 1.0), (2, 2.0)]
    assert not any(name.startswith("mb_metrics") for name in run.data.tags)


def test_an_error_leaves_the_run_of_the_program_open(host, client):
    metrics = Metrics([MlflowSink(run=host, prefix="")])
    metrics.record(1, {"lm loss": 1.0})
    with pytest.raises(KeyError), metrics:
        raise KeyError
    run = client.get_run(host.info.run_id)
    assert (run.info.status, points(client, run, "lm loss")) == ("RUNNING", [(1, 1.0)])


def test_a_second_run_leaves_the_active_run_of_the_program(host, client):
    record([MlflowSink("second")], (1, 2))
    assert mlflow.active_run() is host
    assert the_run(client, "second").info.status == "FINISHED"
    theirs = client.get_run(host.info.run_id)
    assert (theirs.info.status, set(theirs.data.metrics)) == ("RUNNING", {"theirs"})


def test_a_sink_has_either_a_run_or_an_experiment():
    run = mlflow.entities.Run(mlflow.entities.RunInfo("a", "1", "u", "RUNNING", 0, None, "active"), None)
    with pytest.raises(ValueError, match=r"neither experiment nor run is given"):
        MlflowSink()
    with pytest.raises(ValueError, match="experiment, run_name cannot be combined with run"):
        MlflowSink("a", run=run, run_name="b")
    with pytest.raises(ValueError, match=r"prefix .* requires run"):
        MlflowSink("a", prefix="b")
