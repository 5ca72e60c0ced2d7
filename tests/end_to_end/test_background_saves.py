"""Asynchronous saves of a complete run, and failed saves during a run."""

import pytest
from runs import FullDisk, events, mb, metrics, train_here

from mb_checkpoint import select_checkpoint, verify_checkpoint
from mb_checkpoint.errors import CheckpointSaveError

IN_BACKGROUND = [
    "logger.log_progress=true",
    "checkpoint.async_save=true",
    "checkpoint.save_interval=10",
    "checkpoint.non_persistent_save_interval=null",
]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_a_run_that_saves_in_the_background_ends_with_all_checkpoints_whole(overrides, tmp_path, processes):
    out = tmp_path / "run"
    done = mb("pretrain", *overrides, *IN_BACKGROUND, "--nproc", str(processes), "--out", str(out))
    assert done.returncode == 0, done.stderr
    saves = [event for event in events(out) if event[0] == "save"]
    assert saves == [("save", 10), ("save", 20)]
    assert "scheduled an async checkpoint save at iteration      10" in (out / "log.txt").read_text()
    assert not any(verify_checkpoint(out / "checkpoints").values())
    assert select_checkpoint(out / "checkpoints").step == 20
    lines = [line.split("\t")[3:5] for line in (out / "checkpoints/progress.txt").read_text().splitlines()]
    texts = ["Saving async checkpoint", "Saved async checkpoint"]
    assert lines == [["Starting job"], *([text, f"Iteration: {s}"] for _, s in saves for text in texts)]


@pytest.mark.slow
def test_a_save_that_fails_is_tried_again_and_seen_in_metrics_and_events(overrides, tmp_path):
    out, message = tmp_path / "run", "checkpoint of the last step, 20: could not be written in two tries"
    with FullDisk() as disk, pytest.raises(CheckpointSaveError, match=message):
        train_here([*overrides, "checkpoint.save_interval=5"], out, callbacks=(disk,))
    failed = [event for event in events(out) if event[0] == "save_failed"]
    assert failed[:3] == [("save_failed", 5), ("save_failed", 5), ("save_failed", 7)]
    assert [row["checkpoint-failed-saves"] for row in metrics(out) if row["step"] == 9] == [3.0]
