"""Reading of a run from its files: complete, truncated, damaged, rewritten, growing, or from a log."""

import json
import math

import pytest
from sample_runs import BEGIN, event, row, steady, write_run

from mb_metrics import JsonlSink, Metrics
from mb_metrics.report.incremental_statistics import IncrementalStatistics, compute_run_statistics
from mb_metrics.report.run_history import DiscardedSteps
from mb_metrics.report.run_reader import RunNotFoundError, RunReader, read_run, read_run_from_log
from mb_metrics.report.series import Series
from mb_metrics.report.watch import watch_frames
from mb_metrics.run.events import RunEvent, parse_event


def test_what_the_sink_writes_is_read(tmp_path):
    with Metrics([JsonlSink(tmp_path / "metrics.jsonl")], log_interval=2) as metrics:
        for step, loss in enumerate([4.0, math.nan, -math.inf, 1.0], start=1):
            metrics.record(step, {"lm loss": loss, "grad-norm": 0.5}, samples=8, skipped=step == 2)
        metrics.evaluation(4, {"lm loss": 0.5})
    run = read_run(tmp_path)
    assert [str(value) for value in run.series["lm loss"].values] == ["4.0", "nan", "-inf", "1.0"]
    assert list(run.series["iteration-time"].steps) == [2, 4]
    assert (list(run.skipped), list(run.nonfinite)) == ([(2, 1.0)], [(2, 1.0), (3, 1.0)])
    assert [(one.step, one.losses) for one in run.evaluations] == [(4, {"lm loss": 0.5})]
    assert (run.last_step, run.losses, run.notes) == (4, ("lm loss",), ())


def test_a_file_alone_is_a_run(tmp_path):
    write_run(tmp_path, [row(1, 0, lm_loss=1.0)])
    run = read_run(tmp_path / "metrics.jsonl")
    assert (run.name, run.last_step, run.events) == ("metrics", 1, ())


def test_a_row_that_goes_back_supersedes_what_came_after(tmp_path):
    rows = [*steady(1, 8, 1), row(6, 9, lm_loss_validation=3.0), *steady(5, 9, 20, lm_loss=1.0)]
    run = read_run(write_run(tmp_path, rows))
    assert list(run.series["lm loss"].values) == [2.0] * 4 + [1.0] * 5
    assert run.redone == (DiscardedSteps(steps=4, begin=BEGIN + 4, end=BEGIN + 8),)
    assert run.evaluations == ()


def test_a_run_that_goes_back_to_its_beginning(tmp_path):
    run = read_run(write_run(tmp_path, [*steady(1, 3, 1), *steady(1, 2, 10)]))
    assert (run.last_step, run.redone[0].steps) == (2, 3)


def test_damaged_lines_are_counted_and_a_truncated_one_is_reported(tmp_path):
    write_run(tmp_path, steady(1, 3, 1))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + 'oops\n[]\n{"time": 1}\n{"step": 4, "lm lo')
    run = read_run(tmp_path)
    assert run.last_step == 3
    assert run.notes == (
        "3 damaged lines of metrics.jsonl left out",
        "the last line is incomplete: it is being written, or the run was killed",
    )


def test_polling_reads_new_data_and_restarts_when_the_file_was_rewritten(tmp_path):
    path = write_run(tmp_path, steady(1, 3, 1), [event("start", 0, step=0)]) / "metrics.jsonl"
    reader = RunReader(tmp_path)
    reader.poll()
    assert reader.run().last_step == 3
    with path.open("a") as file:
        file.write(json.dumps(row(4, 4, lm_loss=1.0)) + "\n" + '{"step": 5')
        file.flush()
        reader.poll()
        assert (reader.run().last_step, len(reader.run().notes)) == (4, 1)
        file.write(', "lm loss": 1.0}\n')
    reader.poll()
    assert (reader.run().last_step, reader.run().notes) == (5, ())
    JsonlSink(path, resume_step=2).close()
    reader.poll()
    assert reader.run().last_step == 2


def test_a_run_before_its_first_step(tmp_path):
    run = read_run(
        write_run(tmp_path, [], [event("start", 0, step=0)], run_config__yaml="train:\n  train_iters: 9\n")
    )
    assert (run.last_step, run.total_steps, run.losses) == (None, 9, ())


def test_a_row_without_time_or_values_is_a_step(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "name": "x", "lm loss": "NaN"}\n')
    run = read_run(tmp_path)
    assert (run.last_step, math.isnan(run.times.values[0]), list(run.nonfinite.steps)) == (2, True, [2])


def test_the_metrics_file_of_a_run_folder_is_the_run(tmp_path):
    folder = write_run(tmp_path, steady(1, 3, 1), [event("start", 0, step=0), event("stop", 9, step=3)])
    run = read_run(folder / "metrics.jsonl")
    assert (run.source, [each.kind for each in run.events]) == (str(folder), ["start", "stop"])


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_path_without_a_run(tmp_path, name):
    with pytest.raises(RunNotFoundError, match=r"no run found.*--from-log"):
        read_run(tmp_path / name)


def test_warnings_of_the_log_come_once(tmp_path):
    log = "step 1\nwarning: [O1] a\n\x1b[33mUserWarning: b\x1b[0m\nwarning: [O1] a\nno warnings\n"
    run = read_run(write_run(tmp_path, [row(1, 0)], log__txt=log))
    assert run.warnings == ("warning: [O1] a (2 times)", "UserWarning: b")


def test_a_log_is_a_run(tmp_path):
    lines = [
        " iteration       10/      40 | elapsed time per iteration (ms): 500.0 | lm loss: 2.0E+00 |"
        " number of skipped iterations:   2 | number of nan iterations:   1 |",
        " validation loss at iteration 10 | lm loss value: 3.0E+00 | lm loss PPL: 1.0E+00 |",
        " iteration       20/      40 | elapsed time per iteration (ms): 500.0 | lm loss: 1.0E+00 |",
        " iteration       30/      40 | elapsed time per iter",
        "DeprecationWarning: old",
    ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    run = read_run_from_log(path)
    assert (run.name, run.total_steps, run.last_step) == ("train", 40, 20)
    assert (list(run.times.values), list(run.skipped), list(run.nonfinite)) == (
        [5.0, 10.0],
        [(10, 2.0)],
        [(10, 1.0)],
    )
    assert (run.notes, run.warnings) == (("1 cut line left out",), ("DeprecationWarning: old",))


@pytest.mark.parametrize("line", ["", "[]", '{"time": 1}', '{"event": 1}', '{"event": "sa'])
def test_lines_that_are_no_event(line):
    assert parse_event(line) is None


def test_an_event_keeps_what_it_does_not_know():
    found = parse_event('{"event": "save", "time": 5, "step": 3, "seconds": 0.5, "to": "x"}')
    assert found == RunEvent(kind="save", time=5.0, step=3, seconds=0.5, details={"to": "x"})


def test_a_mark_within_a_metrics_file_is_a_restart(tmp_path):
    """A loop that a signal stopped at step 25 closed its file; the resumed one appends to it, an hour later."""
    path = tmp_path / "metrics.jsonl"
    rows = steady(1, 25, 1)
    stop = {"step": 25, "time": rows[-1]["time"], "end": "finished"}
    later = steady(26, 30, 3_600)
    path.write_text("".join(json.dumps(each) + "\n" for each in [*rows, stop, *later]))
    statistics = compute_run_statistics(read_run(path), now=later[-1]["time"] + 1e6)
    assert (statistics.restarts, statistics.steps, statistics.status) == (1, 30, "silent")
    assert statistics.seconds["stopped"] == pytest.approx(later[0]["time"] - rows[-1]["time"] - 1.0)
    assert statistics.goodput == pytest.approx(1.0)
    assert statistics.anomalies == ()
    reader = RunReader(path)
    reader.poll()
    path.write_text(path.read_text() + json.dumps({**stop, "step": 30, "time": later[-1]["time"]}) + "\n")
    reader.poll()
    assert [each.kind for each in reader.run().events] == ["stop", "resume", "stop"]
    assert reader.run().closed


def test_a_metric_without_a_name_is_neither_learning_rate_nor_norm(tmp_path):
    run = read_run(write_run(tmp_path, [{"step": 1, "time": 1.0, "": 3.0, "lm loss": 1.0}]))
    assert (run.learning_rate, run.grad_norm, run.losses) == (None, None, ("lm loss",))


def test_a_run_without_a_loss_shows_its_first_metric(tmp_path):
    run = read_run(write_run(tmp_path, [{"step": 1, "time": 1.0, "lr": 3.0, "reward": 1.0, "kl": 2.0}]))
    assert run.losses == ("reward",)


def test_a_file_that_was_cut_and_has_grown_since_is_read_again(tmp_path):
    """As by a run that resumed between two reads: the file is cut in place."""
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        "".join(json.dumps({"step": step, "time": 1.0, "loss": 1.0}) + "\n" for step in range(1, 6))
    )
    reader = RunReader(file)
    reader.poll()
    kept = file.read_text().splitlines(keepends=True)[:2]
    repeated = [json.dumps({"step": step, "time": 2.0, "loss": 2.0}) + "\n" for step in range(3, 8)]
    with file.open("r+") as same:  # the same inode
        same.truncate()
        same.writelines([*kept, *repeated])
    reader.poll()
    assert list(reader.run().series["loss"].values) == [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]


LIFE = [
    *([("event", event("start", 0, step=0))] + [("row", each) for each in steady(1, 40, 1, grad_norm=1.0)]),
    ("event", event("evaluation", 43, step=40, seconds=2.0)),
    ("event", event("save", 45, step=40)),
    *[("row", each) for each in steady(41, 80, 46, grad_norm=1.0)],
    ("row", row(81, 86, lm_loss=9.0, grad_norm=50.0)),
    ("row", row(82, 120, lm_loss=math.nan, grad_norm=1.0)),
    ("row", row(82, 120, lm_loss_validation=3.0)),
    ("event", event("resume", 150, step=80, seconds=5)),
    *[("row", each) for each in steady(81, 120, 156, grad_norm=1.0)],
    ("event", event("save", 150, step=80)),  # arrives late
    ("event", event("stop", 196, step=120)),
]
"""Lines of a run in the order in which they are written."""


@pytest.mark.parametrize("lines", [1, 7, 40])
def test_statistics_of_a_growing_run_are_those_of_all_its_data(tmp_path, lines):
    write_run(tmp_path, [], [])
    reader, growing = RunReader(tmp_path), IncrementalStatistics()
    names = {"row": "metrics.jsonl", "event": "events.jsonl"}
    for first in range(0, len(LIFE), lines):
        for kind, line in LIFE[first : first + lines]:
            with (tmp_path / names[kind]).open("a") as file:
                file.write(json.dumps(line) + "\n")
        reader.poll()
        found = growing.compute(reader.run(), now=BEGIN + 200).as_json()
        assert found == compute_run_statistics(read_run(tmp_path), now=BEGIN + 200).as_json()
    assert [each["kind"] for each in found["anomalies"]] == []
    assert found["redone_steps"] == 2


@pytest.mark.parametrize("rows", [1_000, 10_000])
def test_an_update_of_statistics_reads_the_new_rows_alone(tmp_path, monkeypatch, rows):
    metrics = {"grad_norm": 1.0, "throughput/tokens_per_sec": 8.0, "throughput/batches_per_sec": 1.0}
    write_run(tmp_path, steady(1, rows, 1, **metrics), [event("start", 0)])
    reader = RunReader(tmp_path)
    frames = watch_frames(reader, size=lambda: (80, 24), sleep=lambda _seconds: None)
    next(frames)
    read = []
    since = Series.since

    def counted(series, index):
        for each in since(series, index):
            read.append(each)
            yield each

    monkeypatch.setattr(Series, "since", counted)
    monkeypatch.setattr(Series, "__iter__", lambda series: counted(series, 0))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row(rows + 1, rows + 1, lm_loss=2.0, **metrics)) + "\n")
    next(frames)
    assert 0 < len(read) < 20
