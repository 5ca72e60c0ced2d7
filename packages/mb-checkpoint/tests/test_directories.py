"""Checkpoint folders that a run can start or resume from."""

from pathlib import Path

import pytest

from mb_checkpoint import CheckpointConfig
from mb_checkpoint.formats.layout import iteration_directory
from mb_checkpoint.load.directories import (
    is_checkpoint_file,
    loads_from,
    resumable_directories,
    resumed_run_configs,
    weight_directories,
)


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


def test_the_settings_that_a_run_resumes_with_are_those_of_its_checkpoints_newest_first(root):
    files = [iteration_directory(root, step) / "run_config.yaml" for step in (200, 100)]
    for file in files:
        file.write_text("model: {}")
    assert [*resumed_run_configs(CheckpointConfig(load=str(root)))] == files
    assert [*resumed_run_configs(CheckpointConfig(load=str(root), ckpt_step=100))] == files[1:]
    assert [*resumed_run_configs(CheckpointConfig(load=str(root), finetune=True))] == []
    files[0].write_text("model:\n  _target_: megatron.bridge.models.GPTModelProvider")
    assert [*resumed_run_configs(CheckpointConfig(load=str(root)))] == files[1:]


def test_a_checkpoint_and_its_folder_are_loaded_from_the_same_folder(root):
    for load in (root, iteration_directory(root, 100), root / ".." / root.name):
        assert loads_from(CheckpointConfig(load=str(load)), root)
    assert not loads_from(CheckpointConfig(load=str(root.parent)), root)
    assert not loads_from(CheckpointConfig(), root)
    assert not loads_from(CheckpointConfig(load=str(root)), None)


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
