import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_metrics import JsonlSink, Metrics, MetricsRow, read_jsonl
from mb_metrics.errors import DamagedRunFileError


def row(step, values=None, *, skipped=False, consumed_samples=None):
    return MetricsRow(
        step=step, time=0.5, values=values or {}, skipped=skipped, consumed_samples=consumed_samples
    )


def steps(path):
    return [row["step"] for row in read_jsonl(path)]


def test_an_object_per_step_and_one_per_evaluation(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    with Metrics([JsonlSink(path)], wall_clock=lambda: 7.0) as metrics:
        metrics.record(1, {"lm loss": 2.0, "learning-rate": 1e-3}, consumed_samples=8)
        metrics.record(2, {"lm loss": math.inf}, skipped=True)
        metrics.evaluation(2, {"lm loss": 0.0})
    assert path.read_text() == (
        '{"step": 1, "time": 7.0, "samples vs steps": 8, "lm loss": 2.0, "learning-rate": 0.001}\n'
        '{"step": 2, "time": 7.0, "lm loss": "Infinity", "skipped": true}\n'
        '{"step": 2, "time": 7.0, "lm loss validation": 0.0, "lm loss validation ppl": 1.0}\n'
        '{"step": 2, "time": 7.0, "end": "finished"}\n'
    )


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.floats()))
def test_any_value_comes_back_and_every_line_is_strict_json(values):
    values = {name: value for name, value in values.items() if name not in ("step", "time")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.jsonl")
        sink = JsonlSink(path)
        sink.write_rows([row(1, values)])
        sink.close()
        line, _ = path.read_bytes().splitlines()
        json.loads(line, parse_constant=pytest.fail)
        (back,) = read_jsonl(path)
    assert repr(back) == repr({"step": 1, "time": 0.5} | values)


@settings(deadline=None)
@given(data=st.data())
def test_stop_and_resume_equals_never_stopped(data):
    last = data.draw(st.integers(1, 30))
    killed = data.draw(st.integers(1, last))
    saved = data.draw(st.integers(0, killed))
    log_interval = data.draw(st.integers(1, 8))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.jsonl")
        dead = Metrics([JsonlSink(path)], log_interval=log_interval)
        for step in range(1, killed + 1):  # and never closed, as far as the next run sees
            dead.record(step, {"lm loss": step})
            if step == saved:
                dead.flush()
        text = path.read_bytes()
        path.write_bytes(text + b'{"step": 9999, "lm l')  # truncated by the kill
        with Metrics([JsonlSink(path, resume_step=saved)], log_interval=log_interval) as metrics:
            for step in range(saved + 1, last + 1):
                metrics.record(step, {"lm loss": step})
        assert steps(path) == list(range(1, last + 1))
        dead.close()


def test_without_a_resume_step_nothing_is_dropped_but_a_cut_line(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    sink = JsonlSink(path)
    sink.write_rows([row(3)])
    sink.close()
    assert steps(path) == [1, 2, 3]
    assert [file.name for file in tmp_path.iterdir()] == ["m.jsonl"]


def test_resuming_before_the_first_step_starts_an_empty_file(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    JsonlSink(path, resume_step=0).close()
    assert path.read_text() == ""


def test_a_complete_last_line_without_its_newline_is_kept(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}')
    JsonlSink(path, resume_step=1).close()
    assert path.read_text() == '{"step": 1}\n'


@pytest.mark.parametrize("line", ["no json", "[1]", "[" * 100_000, '{"loss": 1}', '{"step": "1"}'])
def test_a_file_that_is_not_a_metrics_file_is_not_modified(tmp_path, line):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    before = path.read_text()
    with pytest.raises(DamagedRunFileError, match="line 2: not a JSON object with a step"):
        JsonlSink(path, resume_step=1)
    with pytest.raises(ValueError, match="line 2"):
        list(read_jsonl(path))
    assert path.read_text() == before


def test_a_damaged_row_with_a_step_is_named(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n{"step": 2, loss}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read_jsonl(tmp_path / "m.jsonl"))


def test_what_did_not_fit_on_the_disk_is_written_when_there_is_room(tmp_path):
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink.write_rows([row(1)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (path.stat().st_size + 5, before[1])
    )  # space for a part of a line
    try:
        with pytest.raises(OSError, match="large"):
            sink.write_rows([row(2)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sink.write_rows([row(3)])
    sink.close()
    assert steps(path) == [1, 2, 3]


KILLED = """
import os, sys
from mb_metrics import JsonlSink, Metrics
with Metrics([JsonlSink(sys.argv[1])], log_interval=10) as metrics:
    for step in range(1, 38):
        metrics.record(step, {"lm loss": 1.0 / step})
    os.kill(os.getpid(), 9)
"""


def test_a_kill_loses_at_most_the_current_interval(tmp_path):
    path = tmp_path / "m.jsonl"
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == -9
    assert steps(path) == list(range(1, 31))


@pytest.mark.parametrize("fsync", [False, True])
def test_the_disk_is_waited_for_as_stated(tmp_path, monkeypatch, fsync):
    forced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: forced.append(os.fstat(descriptor).st_size))
    sink = JsonlSink(tmp_path / "m.jsonl", fsync=fsync)
    sink.write_rows([row(1)])
    size = (tmp_path / "m.jsonl").stat().st_size
    assert forced == ([size] if fsync else [])
    sink.close()
    assert forced[-1] == (tmp_path / "m.jsonl").stat().st_size > size


def test_a_file_of_several_runs_keeps_the_rows_of_each(tmp_path):
    path = tmp_path / "m.jsonl"
    rows = [f'{{"step": {step}, "lm loss": 2.5}}\n' for step in (1, 2, 3, 1, 2, 3)]
    path.write_text("".join(rows))
    JsonlSink(path, resume_step=2, end_mark=False).close()
    assert path.read_text().splitlines(keepends=True) == [rows[i] for i in (0, 1, 3, 4)]


def test_the_rows_of_a_single_run_are_truncated_in_place(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(
        "".join(f'{{"step": {step}, "lm loss": 2.5}}\n' for step in range(1, 6)) + '{"step": 6, "l'
    )
    file = path.stat().st_ino
    JsonlSink(path, resume_step=3).close()
    assert (steps(path), path.stat().st_ino) == ([1, 2, 3], file)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_named_pipe_or_folder_in_place_of_the_file_is_rejected(tmp_path, make):
    make(tmp_path / "metrics.jsonl")
    with pytest.raises(DamagedRunFileError, match=r"metrics\.jsonl: is not a file"):
        JsonlSink(tmp_path / "metrics.jsonl")
