"""State of a run folder: fresh, resumable, complete, or of another run."""

import errno

import pytest
import yaml

from mb_models.weight_shapes import fixed_by_weights
from mb_trainer.run_folder import (
    RunFolder,
    RunFolderError,
    changed_settings_message,
    changes_since,
    lock_run_folder,
    schedule_is_overridden,
    unwritable_reason,
)

CONFIG = {"train": {"train_iters": 20}, "checkpoint": {"save": "runs/a/checkpoints"}, "peft": None}


def test_a_fresh_folder_has_no_other_settings(tmp_path):
    assert changes_since(RunFolder(tmp_path), CONFIG) == {}


@pytest.mark.parametrize("damaged", [b"train: [", b"", b"just words", b"\xff\xfe\x00"])
def test_settings_that_a_full_disk_or_a_kill_has_damaged_are_one_refusal(tmp_path, damaged):
    (tmp_path / "run_config.yaml").write_bytes(damaged)
    with pytest.raises(RunFolderError, match=r"run_config.yaml: cannot be read .*or remove it to "):
        changes_since(RunFolder(tmp_path), CONFIG)
    (tmp_path / "run_config.yaml").unlink()
    assert changes_since(RunFolder(tmp_path), CONFIG) == {}


def test_other_settings_are_described_each_with_both_values(tmp_path):
    folder = RunFolder(tmp_path)
    folder.run_config.write_text(yaml.safe_dump(CONFIG))
    changed = changes_since(folder, {**CONFIG, "train": {"train_iters": 30}})
    assert changed == {"train.train_iters": (20, 30)}
    assert "train.train_iters: 20 there, 30 now" in changed_settings_message(folder, changed)
    assert "--resume-with-changes" in changed_settings_message(folder, changed)


def test_a_run_that_was_resumed_with_changes_keeps_its_own_schedule_until_it_saves(tmp_path):
    folder = RunFolder(tmp_path)
    assert not schedule_is_overridden(folder)
    folder.run_config.write_text("scheduler: {override_opt_param_scheduler: true}")
    assert schedule_is_overridden(folder)
    folder.run_config.write_text(yaml.safe_dump(CONFIG))
    assert not schedule_is_overridden(folder)


def test_settings_that_stored_weights_depend_on_are_not_recommended_to_change(tmp_path):
    changed = {"model.hidden_size": (64, 128), "train.train_iters": (20, 30)}
    text = changed_settings_message(RunFolder(tmp_path), changed, fixed=fixed_by_weights(changed))
    assert "model.hidden_size cannot be changed here" in text
    assert "--resume-with-changes" not in text


def test_a_folder_that_cannot_be_written_is_known_before_it_is_made(tmp_path):
    (tmp_path / "file").touch()
    assert unwritable_reason(RunFolder(tmp_path / "file" / "run")) == (
        "the run folder cannot be written (Not a directory)"
    )
    assert unwritable_reason(RunFolder(tmp_path / "new" / "run")) is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_second_trainer_is_kept_out_until_the_first_has_ended(tmp_path):
    with (
        lock_run_folder(RunFolder(tmp_path)),
        pytest.raises(RunFolderError, match="another trainer"),
        lock_run_folder(RunFolder(tmp_path), timeout_seconds=0),
    ):
        pass
    with lock_run_folder(RunFolder(tmp_path)):
        pass


def test_a_run_folder_without_locks_excludes_no_other_run(tmp_path, monkeypatch):
    def no_locks(_descriptor, _operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with lock_run_folder(RunFolder(tmp_path)), lock_run_folder(RunFolder(tmp_path)):
        assert tmp_path.is_dir()
