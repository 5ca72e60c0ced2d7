"""Checkpoint folders that a run can start or resume from."""

from pathlib import Path

import pytest

from mb_checkpoint import CheckpointConfig
from mb_checkpoint.formats.layout import iteration_directory
from mb_checkpoint.load.directories import is_checkpoint_file, resumable_directories, weight_directories


@pytest.fixture
def root(tmp_path):
    for step in (100, 200):
        iteration_directory(tmp_path / "root", step).mkdir(parents=True)
    return tmp_path / "root"


def test_weights_are_the_steps_of_a_folder_or_the_folder_itself(root):
    newest = iteration_directory(root, 200)
    assert weight_directories(root) == [newest, iteration_directory(root, 100), root / "release"]
    (newest / "train_state.pt").touch()
    assert weight_directories(newest) == [newest]
    assert weight_directories(root / "none") == [root / "none" / "release"]


def test_resumable_checkpoints_are_persistent_or_not_newest_first(root):
    config = CheckpointConfig(save=str(root), load=str(root))
    between = iteration_directory(root / "non_persistent", 150)
    between.mkdir(parents=True)
    assert resumable_directories(config) == [
        iteration_directory(root, 200),
        between,
        iteration_directory(root, 100),
    ]
    (between / "train_state.pt").touch()
    assert resumable_directories(CheckpointConfig(load=str(between))) == [between]


def test_a_fresh_run_resumes_from_nothing(root):
    assert resumable_directories(CheckpointConfig(load=str(root), finetune=True)) == []
    assert resumable_directories(CheckpointConfig()) == []


def test_a_folder_that_cannot_be_read_has_no_checkpoints(monkeypatch, root):
    def fail(path):
        raise PermissionError(path)

    monkeypatch.setattr(Path, "iterdir", fail)
    assert weight_directories(root) == []
    assert resumable_directories(CheckpointConfig(load=str(root))) == []


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("runs/a/iter_0000100/tokenizer.json", True),
        ("runs/a/release/tokenizer.json", True),
        ("my/weights/tokenizer.json", True),
        ("other/tokenizer.json", False),
    ],
)
def test_files_of_checkpoints_are_known_by_their_folders(file, expected):
    assert is_checkpoint_file(Path(file), weights="my/weights") is expected
