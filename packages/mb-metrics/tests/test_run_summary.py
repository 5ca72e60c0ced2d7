"""Last lines of a run: what was trained, and where its files are."""

import math
from types import SimpleNamespace

import pytest

from mb_metrics import RunSummary
from mb_metrics.run.summary import location_lines


def context(*, step=0, losses=None, tokens=None, samples=8):
    """Return the context of a callback after a step."""
    return SimpleNamespace(
        state=SimpleNamespace(train_state=SimpleNamespace(step=step)),
        result=None if tokens is None else SimpleNamespace(tokens=tokens, samples=samples),
        total_loss_dict=losses,
    )


def test_the_lowest_validation_loss_and_the_losses_of_the_test_are_printed():
    summary = RunSummary(clock=lambda: 0.0)
    for step, loss in ((5, math.nan), (10, 3.0), (20, 2.0), (25, math.nan), (30, 2.5)):
        summary.on_eval_end(context(step=step, losses={"lm loss": loss}))
    summary.on_eval_end(context(step=35, losses=None))  # was aborted
    summary.on_test_end(context(losses={"lm loss": 2.25}))
    assert list(summary.lines())[1:] == [
        "  best validation loss 2.0000 at step 20",
        "  test lm loss         2.2500",
    ]


def test_without_a_language_model_the_first_loss_counts():
    summary = RunSummary(clock=lambda: 0.0)
    summary.on_eval_end(context(step=10, losses={"sorting loss": 3.0, "other": 1.0}))
    assert list(summary.lines())[1:] == ["  best validation loss 3.0000 at step 10"]


def test_the_clock_stops_when_the_device_is_done():
    clock = [0.0]

    def finish_queued_work():
        clock[0] = 40.0  # the host enqueued the steps within a second

    summary = RunSummary(clock=lambda: clock[0], wait_for_device=finish_queued_work)
    summary.on_train_start(context())
    summary.on_train_step_end(context(tokens=512))
    clock[0] = 1.0
    assert "512 tokens in 40.0 s (13 tokens/s)" in next(summary.lines())


@pytest.mark.parametrize(
    ("checkpoints", "last"),
    [
        ("a/checkpoints", ["  checkpoints          a/checkpoints", "  resume with          mb pretrain"]),
        (None, ["  checkpoints          none (checkpoint.save is null)"]),
    ],
)
def test_only_existing_files_are_listed_and_resumed_from(tmp_path, checkpoints, last):
    metrics = tmp_path / "metrics.jsonl"
    metrics.touch()
    lines = location_lines(
        [metrics, tmp_path / "tensorboard"], checkpoints=checkpoints, resume_command="mb pretrain"
    )
    assert list(lines) == [f"  metrics              {metrics}", *last]
