"""Tracker for Accelerate, called by an `Accelerator`."""

import pytest

pytest.importorskip("accelerate", reason="needs mb-metrics[accelerate]")

import numpy
from accelerate import Accelerator

from mb_metrics import AccelerateTracker, Metrics


@pytest.fixture
def accelerator(recorder):
    tracker = AccelerateTracker(Metrics([recorder], log_interval=2), samples=8)
    accelerator = Accelerator(log_with=tracker, cpu=True)
    accelerator.init_trackers("project", config={"lr": 0.1})
    return accelerator


def test_what_is_logged_is_recorded(accelerator, recorder):
    for step in (1, 2, 3):
        accelerator.log({"train_loss": 4.0 / step}, step=step)
        accelerator.log({"lr": 0.1}, step=step)
    assert accelerator.get_tracker("mb_metrics", unwrap=True).log_interval == 2
    accelerator.end_training()
    assert recorder.steps == [1, 2, 3]
    assert [
        (row.values["train_loss"], row.values["lr"], row.values["batch-size"]) for row in recorder.rows
    ] == [
        (4.0, 0.1, 8.0),
        (2.0, 0.1, 8.0),
        (4.0 / 3, 0.1, 8.0),
    ]
    assert recorder.closed == 1


def test_without_a_step_each_call_is_the_next_one(accelerator, recorder):
    accelerator.log({"loss": 3.0}, step=4)
    accelerator.log({"loss": 2.0})
    accelerator.log({"loss": 1.0})
    accelerator.end_training()
    assert [(row.step, row.values["loss"]) for row in recorder.rows] == [(4, 3.0), (5, 2.0), (6, 1.0)]


def test_what_cannot_be_recorded_is_left_out_with_a_line(accelerator, recorder, caplog):
    """Accelerate's own trackers for TensorBoard and W&B take text, and values of an earlier step."""
    accelerator.log({"loss": 2.0, "note": "text", "list": [1]}, step=2)
    accelerator.log({"val": 3.0, "loss": 9.0}, step=1)
    accelerator.end_training()
    assert [(row.step, row.values["loss"], row.values["val"]) for row in recorder.rows] == [(2, 2.0, 3.0)]
    assert caplog.messages == ["metrics: list, note not recorded: no numbers"]


@pytest.mark.parametrize(("recorded", "late"), [(2, 1), (0, 0)])
def test_metrics_of_a_recorded_step_are_left_out_with_a_line(recorder, caplog, recorded, late):
    tracker = AccelerateTracker(metrics := Metrics([recorder], log_interval=2))
    tracker.log({"loss": 2.0}, step=recorded)
    tracker._logger.flush()
    tracker.log({"val": 3.0}, step=late)
    metrics.close()
    assert recorder.steps == [recorded]
    assert caplog.messages == [f"metrics: val not recorded: of step {late}, which came after step {recorded}"]


def test_steps_may_count_from_0_and_be_of_another_library(accelerator, recorder, caplog):
    """Accelerate's own trackers take any step."""
    for step in (0, 0, numpy.int64(1), 2.5, "3"):
        accelerator.log({"loss": 2.0}, step=step)
    accelerator.end_training()
    assert recorder.steps == [0, 1]
    assert caplog.messages == [
        f"metrics: loss not recorded: of step {step!r}, which is no integer" for step in (2.5, "3")
    ]
