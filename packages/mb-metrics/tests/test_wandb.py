"""Weights & Biases in offline mode: contents of its run file."""

import json
import math
import os
import time

import pytest

pytest.importorskip("wandb")

import wandb
from wandb_files import artifacts, history, runs, settings

from mb_metrics import BackgroundSink, Metrics, WandbSink


@pytest.fixture
def sink(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)

    def make(resume_step=None, **more):
        run_file = tmp_path / "wandb_run.json"
        return WandbSink(
            "gpt",
            name="one",
            folder=tmp_path,
            run_file=run_file,
            resume_step=resume_step,
            mode="offline",
            **more,
        )

    return make


def test_what_is_recorded_is_in_the_run_file(sink, tmp_path):
    config = {"train": {"lr": 0.1}, "tokenizer": {"hf_token": "very secret"}}
    with Metrics([BackgroundSink(sink(config=config))], log_interval=2, wall_clock=lambda: 7.0) as metrics:
        for step in (1, 2, 3):
            values = {
                "lm loss": math.nan if step == 2 else -1.0,
                "load_balancing_loss": 0.5,
                "mtp_1 loss": 2.0,
            }
            metrics.record(step, values, consumed_samples=8 * step)
        metrics.evaluation(3, {"lm loss": 0.0})
        checkpoint = tmp_path / "checkpoints" / "iter_0000003"
        checkpoint.mkdir(parents=True)
        (checkpoint / "weights").write_text("w")
        metrics.keep_file(checkpoint, "checkpoints/iter_0000003")
        metrics.keep_file(checkpoint / "weights")
    assert not metrics.failures
    (run,) = runs(tmp_path)
    noted = [
        (each.name, sorted(each.aliases), [entry.ref for entry in each.manifest.contents])
        for each in artifacts(run)
    ]
    assert noted == [("checkpoints", ["iter_0000003", "latest"], [f"{checkpoint.as_uri()}/weights"])]
    rows = history(run)
    plain = {"load_balancing_loss": 0.5, "mtp_1 loss": 2.0}
    assert [row["_step"] for row in rows] == [1, 2, 3]
    assert rows[0] == {"_step": 1, "lm loss": -1.0, "samples vs steps": 8, **plain}
    assert math.isnan(rows[1]["lm loss"])
    assert {"lm loss validation": 0, "lm loss validation ppl": 1, **plain}.items() <= rows[2].items()
    assert (settings(run).project, settings(run).display_name) == ("gpt", "one")
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"very secret" not in written
    assert os.environ["WANDB_API_KEY"].encode() not in written


def test_a_resumed_job_continues_the_same_run_and_rewinds_repeated_steps(sink, tmp_path):
    for steps, resume_step in ((range(1, 8), 0), (range(5, 11), 4)):
        with Metrics([sink(resume_step)], log_interval=100) as metrics:
            for step in steps:
                metrics.record(step, {"lm loss": 1.0})
        assert not metrics.failures
        time.sleep(1.1)  # W&B names a run's folder after the second
    first, second = runs(tmp_path)
    assert settings(second).run_id == settings(first).run_id
    branch = settings(second).branch_point
    assert (branch.run, branch.metric, branch.value) == (settings(first).run_id, "_step", 4.0)
    assert [row["_step"] for row in history(second)] == list(range(5, 11))
    assert json.loads((tmp_path / "wandb_run.json").read_text())["last_step"] == 10


def test_a_job_that_repeats_nothing_continues_without_rewinding(sink, tmp_path):
    for steps, resume_step in (((1, 2), 0), ((3,), 2)):
        with Metrics([sink(resume_step)]) as metrics:
            for step in steps:
                metrics.record(step, {"lm loss": 1.0})
        time.sleep(1.1)
    first, second = runs(tmp_path)
    assert settings(second).run_id == settings(first).run_id
    assert not settings(second).HasField("branch_point")


def test_a_run_that_an_exception_ended_is_shown_as_failed(sink, tmp_path):
    metrics = Metrics([sink()])
    metrics.record(1, {"lm loss": 1.0})
    with pytest.raises(KeyError), metrics:
        raise KeyError
    (run,) = runs(tmp_path)
    assert [record.exit.exit_code for record in run if record.WhichOneof("record_type") == "exit"] == [1]


def test_without_a_record_no_run_is_made(sink, tmp_path):
    Metrics([sink()]).close()
    assert runs(tmp_path) == []


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A run that the program has opened, with its own metrics."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="theirs", name="their name", dir=tmp_path, mode="offline", config={"lr": 0.1})
    yield run
    run.finish()


def losses(rows, name="mb_metrics/loss"):
    return [(row["mb_metrics/step"], row[name]) for row in rows if name in row]


def record(sink, host, *, explicit_step):
    """Train six steps, of which the program logs every second one and the recorder every third one as a summary."""
    with Metrics([sink], log_interval=3) as metrics:
        for step in range(1, 7):
            metrics.record(step, {"loss": float(step), "lr": 0.5}, samples=4)
            if step % 2 == 0:
                host.log({"theirs": step}, step=step if explicit_step else None)
        metrics.evaluation(6, {"loss": 7.0})
    assert not metrics.failures


@pytest.mark.parametrize("explicit_step", [False, True])
def test_metrics_are_added_to_the_run_of_the_program(host, tmp_path, explicit_step):
    record(WandbSink(run=host), host, explicit_step=explicit_step)
    assert wandb.run is host
    host.log({"theirs": 7}, step=7 if explicit_step else None)
    host.finish()
    (run,) = runs(tmp_path)
    rows = history(run)
    assert [row["theirs"] for row in rows if "theirs" in row] == [2, 4, 6, 7]
    own_steps = [2, 4, 6, 7] if explicit_step else [0, 1, 2, 3]
    assert [row["_step"] for row in rows if "theirs" in row] == own_steps
    assert losses(rows) == [(3, 2), (6, 5)]
    assert losses(rows, "mb_metrics/loss validation") == [(6, 7)]
    assert (settings(run).display_name, settings(run).project) == ("their name", "theirs")
    defined = {record.metric.name: record.metric for record in run if record.HasField("metric")}
    assert defined["mb_metrics/loss"].step_metric == "mb_metrics/step"
    assert "theirs" not in defined


def test_each_row_can_be_a_step_of_the_run(host, tmp_path, caplog):
    record(WandbSink(run=host, prefix="ours ", commit=True), host, explicit_step=False)
    host.finish()
    (run,) = runs(tmp_path)
    assert losses(history(run), "ours loss") == [(step, step) for step in range(1, 7)]
    assert [row["theirs"] for row in history(run) if "theirs" in row] == [2, 4, 6]
    assert "newest interval" not in caplog.text


def test_intervals_that_replace_each_other_are_reported_once(host, caplog):
    with Metrics([WandbSink(run=host)], log_interval=1) as metrics:
        for step in range(1, 5):
            metrics.record(step, {"loss": 1.0})
    assert caplog.text.count("only the newest interval of each of its steps is kept") == 1


def test_an_exception_leaves_the_run_of_the_program_open(host, tmp_path):
    checkpoint = tmp_path / "iter_0000001"
    checkpoint.mkdir()

    metrics = Metrics([WandbSink(run=host)])
    metrics.record(1, {"loss": 1.0})
    metrics.keep_file(checkpoint, "checkpoints/iter_0000001")
    with pytest.raises(KeyError), metrics:
        raise KeyError
    host.log({"theirs": 1})
    host.finish()
    (run,) = runs(tmp_path)
    assert [record.exit.exit_code for record in run if record.WhichOneof("record_type") == "exit"] == [0]
    assert [each.name for each in artifacts(run)] == ["checkpoints"]


def test_a_second_run_leaves_the_active_run_of_the_program(host, sink, tmp_path):
    record(sink(), host, explicit_step=False)
    assert wandb.run is host
    host.log({"theirs": 7})
    host.finish()
    ours, theirs = sorted(runs(tmp_path), key=lambda run: settings(run).project)
    assert (settings(ours).project, [row["_step"] for row in history(ours)]) == ("gpt", [1, 2, 3, 4, 5, 6])
    assert [row["theirs"] for row in history(theirs)] == [2, 4, 6, 7]
    assert "loss" not in history(theirs)[0]


def test_a_sink_has_either_a_run_or_a_project(host):
    with pytest.raises(ValueError, match=r"neither project nor run is given \(project=None, run=None\)"):
        WandbSink(run=None)
    with pytest.raises(ValueError, match="project, resume_step cannot be combined with run"):
        WandbSink("gpt", run=host, resume_step=0)
    with pytest.raises(ValueError, match=r"prefix \('a'\) requires run"):
        WandbSink("gpt", prefix="a")
    with pytest.raises(ValueError, match="commit requires run"):
        WandbSink("gpt", commit=True)
