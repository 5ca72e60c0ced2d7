"""Success and speed of a run, from logs."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest

from mb_launch.cloudai.outcome import (
    LAUNCHER_LOG,
    METRIC_ERROR,
    JobStatusResult,
    SeriesStatistics,
    extract_mbridge_metrics,
    metric_of_run,
    was_run_successful,
    write_report,
)


def step(seconds, tflops):
    return f"[rank0] Step Time : {seconds:.2f}s GPU utilization: {tflops:.1f}MODEL_TFLOP/s/GPU"


def run(folder, *lines):
    (folder / LAUNCHER_LOG).write_text("\n".join(lines))
    return SimpleNamespace(output_path=folder)


def test_the_last_ten_steps_count():
    log = "\n".join(step(number, 10 * number) for number in range(1, 13))
    assert extract_mbridge_metrics(log) == ([*range(3, 13)], [*range(30, 130, 10)])


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        ("step time:2s and more gpu UTILIZATION: 7 tflop/s/gpu", ([2.0], [7.0])),
        ("Step Time : 1.5 s | GPU utilization: 3.25 MODEL_TFLOP/s/GPU", ([1.5], [3.25])),
        ("Step Time : nans GPU utilization: 3TFLOP/s/GPU", ([], [])),
        ("Step Time : 1.5s", ([], [])),
    ],
)
def test_the_forms_of_a_line(line, figures):
    assert extract_mbridge_metrics(line) == figures


def test_a_run_with_a_step_succeeded(tmp_path):
    assert was_run_successful(run(tmp_path, "start", step(1, 2), "the launcher failed")) == JobStatusResult(
        is_successful=True
    )


def test_a_run_without_a_step_failed_with_the_end_of_its_log(tmp_path):
    status = was_run_successful(run(tmp_path, *(f"line {number}" for number in range(100))))
    assert status.error_message.splitlines() == [f"line {number}" for number in range(60, 100)]
    assert not status.is_successful


def test_a_run_without_a_log_failed(tmp_path):
    status = was_run_successful(SimpleNamespace(output_path=tmp_path))
    assert status.error_message == f"There is no {LAUNCHER_LOG} in {tmp_path}."


def test_metrics_are_means(tmp_path):
    made = run(tmp_path, step(1, 10), step(3, 30))
    assert {name: metric_of_run(made, name) for name in ("default", "step-time", "tflops-per-gpu", "other")} == {
        "default": 2.0, "step-time": 2.0, "tflops-per-gpu": 20.0, "other": METRIC_ERROR,
    }  # fmt: skip


def test_metrics_of_nothing_are_the_error_value(tmp_path):
    assert metric_of_run(SimpleNamespace(output_path=tmp_path)) == METRIC_ERROR


def test_the_report_has_five_statistics_for_each_series(tmp_path):
    text = write_report(run(tmp_path, step(1, 10), step(2, 20), step(6, 30))).read_text()
    assert "Step Time (s)\n  avg: 3.0\n  median: 2.0\n  min: 1.0\n  max: 6.0\n  std: 2.16" in text
    assert "TFLOP/s per GPU\n  avg: 20.0\n  median: 20.0\n" in text


def test_one_step_has_no_deviation():
    assert asdict(SeriesStatistics.of([2.0])) == {
        "avg": 2.0,
        "median": 2.0,
        "min": 2.0,
        "max": 2.0,
        "std": 0.0,
    }


def test_the_report_of_a_run_without_steps(tmp_path):
    assert (
        write_report(run(tmp_path, "nothing")).read_text()
        == f"No step was found in {tmp_path / LAUNCHER_LOG}.\n"
    )
