"""Losses and learning rates of runs that other code recorded: found by their usual names, or named by the user."""

import pytest
from sample_runs import BEGIN, row, write_run

from mb_metrics import MetricNames, MetricNotRecordedError, read_run, read_run_from_log
from mb_metrics.report.chart_builder import ChartBuilder, LabeledRun
from mb_metrics.report.incremental_statistics import compute_run_statistics
from mb_metrics.report.time_split import split_time
from mb_metrics.report.watch import watch_text

NANOGPT = [
    {**row(step, step), "iter": step, "mfu": 0.1, "train/loss": 4.0 / step, "val/loss": 5.0 / step, "lr": 0.1}
    for step in (1, 2, 3)
]


def charts(run):
    statistics = compute_run_statistics(run, now=3.0)
    subject = LabeledRun(run=run, label="a", split=split_time(run), statistics=statistics)
    return [chart.title for chart in ChartBuilder([subject], buckets=9).charts()]


def test_the_usual_names_are_found(tmp_path):
    run = read_run(write_run(tmp_path / "gpt", NANOGPT))
    assert (run.losses, list(run.validation)) == (("train/loss",), ["val/loss"])
    assert list(run.learning_rate.values) == [0.1] * 3
    text = " ".join(watch_text(run, now=BEGIN + 4, width=120, plain=True).split())
    assert "loss 1.333 mean of 3 2.444 validation 1.667 best 1.667 at 3" in text
    assert " lr 0.1 " in text
    assert charts(run)[:3] == ["train/loss", "val/loss on validation data", "Learning rate"]
    assert "mfu" in charts(run)
    assert next(iter(compute_run_statistics(run, now=BEGIN).losses)) == "train/loss"


def test_names_can_be_chosen(tmp_path):
    names = MetricNames(losses=("val/loss", "train/loss"), learning_rate="mfu")
    run = read_run(write_run(tmp_path, NANOGPT), metric_names=names)
    assert (run.losses, run.validation, run.learning_rate.values[0]) == (("val/loss", "train/loss"), {}, 0.1)


def test_a_loss_of_any_name_counts_nan(tmp_path):
    rows = [{**row(1, 0), "group/objective": "NaN", "grad_norm": "NaN"}]
    names = MetricNames(losses=("group/objective",))
    assert list(read_run(write_run(tmp_path, rows), metric_names=names).nonfinite) == [(1, 1.0)]
    assert list(read_run(tmp_path).nonfinite) == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            MetricNames(losses=("los", "lss")),
            "the loss 'los' or 'lss' was not recorded. Recorded metrics are 'iter'",
        ),
        (MetricNames(learning_rate="rate"), "the learning rate 'rate' was not recorded"),
    ],
)
def test_a_name_that_was_not_recorded_is_an_error(tmp_path, names, message):
    with pytest.raises(MetricNotRecordedError, match=message):
        read_run(write_run(tmp_path, NANOGPT), metric_names=names)


def test_before_the_first_row_no_name_is_an_error(tmp_path):
    run = read_run(write_run(tmp_path, []), metric_names=MetricNames(losses=("x",)))
    assert run.losses == ()


def test_names_of_a_log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        " iteration 10/ 40 | elapsed time per iteration (ms): 500.0 | x: 2.0E+00 | y: 1.0E+00 |\n"
    )
    assert read_run_from_log(path, metric_names=MetricNames(losses=("y",))).losses == ("y",)
    with pytest.raises(MetricNotRecordedError, match="Name one of them"):
        read_run_from_log(path, metric_names=MetricNames(losses=("z",)))
