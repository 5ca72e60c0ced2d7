"""Tracker for Accelerate, called by an `Accelerator`."""

import pytest

pytest.importorskip("accelerate", reason="needs mb-metrics[accelerate]")

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


def test_a_step_is_required(accelerator):
    with pytest.raises(
        ValueError, match=r"no step is given \(step=None\).*accelerator\.log\(values, step=step\)"
    ):
        accelerator.log({"loss": 1.0})


def test_a_text_is_no_metric(accelerator):
    accelerator.log({"note": "text"}, step=1)
    with pytest.raises(TypeError, match="'note' is a str"):
        accelerator.end_training()
