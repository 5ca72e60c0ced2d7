"""Locations that the summary of a run prints."""

import pytest

from mb_metrics.run.summary import location_lines


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
