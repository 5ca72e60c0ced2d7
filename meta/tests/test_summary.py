"""Locations that the summary of a run prints."""

import pytest

from mb_trainer.run_folder import RunFolder
from mb_trainer.train import location_lines


@pytest.mark.parametrize(
    ("checkpoints", "last"),
    [
        ("a/checkpoints", ["  checkpoints          a/checkpoints", "  resume with          mb pretrain"]),
        (None, ["  checkpoints          none (checkpoint.save is null)"]),
    ],
)
def test_only_existing_files_are_listed_and_resumed_from(tmp_path, checkpoints, last):
    folder = RunFolder(tmp_path)
    folder.metrics.touch()
    lines = location_lines(folder, checkpoints=checkpoints, resume_command="mb pretrain")
    assert list(lines) == [f"  metrics              {folder.metrics}", *last]
