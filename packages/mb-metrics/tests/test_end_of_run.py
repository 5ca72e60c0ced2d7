"""The end of a run in its metrics file: closed by the program, at the exit of the process, or not at all."""

import json
import subprocess
import sys

import pytest
from sample_runs import BEGIN, event, row, steady, write_run

from mb_metrics import JsonlSink, Metrics, MetricsRow, compute_run_statistics, read_jsonl, read_run
from mb_metrics.report.run_statistics import status_text


def state(path, now=BEGIN):
    return status_text(compute_run_statistics(read_run(path), now=now))


def last_line(path):
    return json.loads(path.read_text().splitlines()[-1])


def record(path, steps=(1, 2), **more):
    with Metrics([JsonlSink(path, **more)], wall_clock=lambda: 7.0) as metrics:
        for step in steps:
            metrics.record(step, {"loss": 1.0})


def test_a_closed_run_is_finished(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record(path)
    assert last_line(path) == {"step": 2, "time": 7.0, "end": "finished"}
    assert [each["step"] for each in read_jsonl(path)] == [1, 2]
    assert state(tmp_path) == "finished"
    statistics = compute_run_statistics(read_run(tmp_path), now=BEGIN)
    assert (statistics.status, statistics.closed, statistics.steps, statistics.warnings) == (
        "complete",
        True,
        2,
        (),
    )


def test_a_run_that_an_exception_ended_is_failed(tmp_path):
    metrics = Metrics([JsonlSink(tmp_path / "metrics.jsonl")])
    metrics.record(1, {"loss": 1.0})
    with pytest.raises(KeyError), metrics:
        raise KeyError
    assert state(tmp_path) == "failed"
    assert compute_run_statistics(read_run(tmp_path), now=BEGIN).warnings == ("The run ended with an error.",)


@pytest.mark.parametrize(
    ("steps", "ended"), [((1, 2), "stopped"), ((1, 2, 3), "finished"), ((9,), "finished")]
)
def test_a_run_that_is_left_before_its_last_step_is_stopped(tmp_path, steps, ended):
    """As by `break`, at the end of the time of a job."""
    path = tmp_path / "metrics.jsonl"
    with Metrics([JsonlSink(path)], total_steps=3) as metrics:
        for step in steps:
            metrics.record(step, {"loss": 1.0})
    assert last_line(path)["end"] == state(tmp_path) == ended
    assert [each["step"] for each in read_jsonl(path)] == list(steps)


@pytest.mark.parametrize("seconds", [1, 10_000])
def test_a_run_without_the_mark_is_not_closed(tmp_path, seconds):
    folder = write_run(tmp_path, steady(1, 3, 1))
    assert state(folder, now=BEGIN + seconds) == "not closed (killed or still running)"


def test_a_continued_run_is_open_again_until_it_is_closed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record(path)
    metrics = Metrics([JsonlSink(path)], log_interval=1)
    metrics.record(3, {"loss": 1.0})
    assert state(path) == "not closed (killed or still running)"
    metrics.close()
    assert (state(path), read_run(path).last_step) == ("finished", 3)


def test_the_time_between_a_kill_and_the_resume_is_not_training(tmp_path, monkeypatch):
    """Steps of one second: 1 to 6, killed, resumed from 4 after 100 s, closed at 8, and continued after 50 s."""
    path, now = tmp_path / "metrics.jsonl", [BEGIN]
    monkeypatch.setattr("mb_metrics.sinks.jsonl.time.time", lambda: now[0])

    def start(resume_step, last, *, closes):
        sink = JsonlSink(path, resume_step=resume_step)
        for step in range(resume_step + 1, last + 1):
            now[0] += 1
            sink.write_rows(
                [
                    MetricsRow(
                        step=step, time=now[0], values={"loss": 1.0}, skipped=False, consumed_samples=None
                    )
                ]
            )
        if closes:
            sink.close()

    start(0, 6, closes=False)
    now[0] += 100
    start(4, 8, closes=True)
    assert [each["step"] for each in read_jsonl(path)] == [1, 2, 3, 4, 5, 6, 7, 8]
    now[0] += 50
    start(8, 10, closes=True)
    seconds = compute_run_statistics(read_run(path), now=now[0])
    assert seconds.redone_steps == 2
    assert seconds.seconds["lost"] == pytest.approx(2)  # steps 5 and 6 of the killed process
    assert seconds.seconds["stopped"] == pytest.approx(150)
    assert seconds.seconds["training"] + seconds.seconds["starting"] == pytest.approx(9)
    assert seconds.warnings == (
        "The run ended once without a recorded stop: killed or crashed.",
        "2 steps had to be repeated after a restart.",
    )
    JsonlSink(path, resume_step=10).close()  # a process that records nothing leaves nothing
    assert last_line(path)["end"] == "finished"


def test_without_a_record_nothing_is_marked(tmp_path):
    path = tmp_path / "metrics.jsonl"
    Metrics([JsonlSink(path)]).close()
    assert path.read_text() == ""
    record(path, end_mark=False)
    assert last_line(path)["step"] == 2


def test_events_state_the_end_where_they_are_recorded(tmp_path):
    rows = [*steady(1, 3, 1), {"step": 3, "time": BEGIN + 3, "end": "finished"}]
    run = read_run(write_run(tmp_path, rows, [event("start", 0)]))
    assert (run.closed, [each.kind for each in run.events], run.last_step) == (None, ["start"], 3)


@pytest.mark.parametrize(
    "line", ['{"step": 4, "end": 1.0}', '{"step": 4, "end": "NaN"}', '["end"]', '{"end"']
)
def test_a_metric_may_have_the_name_of_the_mark(tmp_path, line):
    path = write_run(tmp_path, [row(1, 1, lm_loss=1.0)]) / "metrics.jsonl"
    path.write_text(path.read_text() + line + "\n")
    assert read_run(tmp_path).closed is False


FORGOTTEN = """
import os, sys
from mb_metrics import BackgroundSink, JsonlSink, Metrics
def main():
    for name in "ab":
        metrics = Metrics([BackgroundSink(JsonlSink(f"{sys.argv[1]}/{name}.jsonl"))], log_interval=100)
        metrics.record(1, {"loss": 1.0})
        metrics.record(2, {"loss": 1.0})
main()
"""


@pytest.mark.parametrize(
    ("end", "mark"),
    [("", "finished"), ("raise KeyError", "failed"), ("if not os.fork(): sys.exit()\nos.wait()", "finished")],
)
def test_what_the_program_did_not_close_is_closed_at_exit(tmp_path, end, mark):
    command = [sys.executable, "-c", FORGOTTEN + end, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for name in "ab":
        path = tmp_path / f"{name}.jsonl"
        assert [each["step"] for each in read_jsonl(path)] == [1, 2]
        assert path.read_text().count('"end"') == 1
        assert last_line(path)["end"] == mark
    assert done.stderr.count("metrics: close() was not called") == 1
    assert "failed" not in done.stderr


def test_a_closed_recorder_is_not_closed_again_at_exit(tmp_path):
    command = [
        sys.executable,
        "-c",
        FORGOTTEN.replace("\nmain()", "\n        metrics.close()\nmain()"),
        tmp_path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
