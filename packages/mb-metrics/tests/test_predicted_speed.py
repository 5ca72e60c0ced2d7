"""Throughput that was predicted for a run, in its report."""

import pytest
from sample_runs import BEGIN, event, steady, write_run

from mb_metrics.report.incremental_statistics import compute_run_statistics
from mb_metrics.report.page import report_html
from mb_metrics.report.run_reader import read_run


@pytest.mark.parametrize(
    ("fields", "predicted", "shown"),
    [
        ({}, None, None),
        ({"predicted_tokens_per_second_per_gpu": 200.0}, 200.0, "200 (measured -25%)"),
    ],
)
def test_predicted_and_measured_throughput_are_shown_together(tmp_path, fields, predicted, shown):
    rows = steady(1, 4, 2, **{"throughput/device/tokens_per_sec": 150.0})
    run = read_run(write_run(tmp_path / "run", rows, [event("start", 0, step=0, **fields)]))
    found = compute_run_statistics(run, now=BEGIN + 100)
    assert found.predicted_tokens_per_second_per_device == predicted
    page = report_html([run], now=BEGIN + 100)
    assert ("Predicted tokens/s" in page) == (shown is not None)
    assert shown is None or shown in page
