"""Selection of the checkpoint to read, and the reasons for skipping others."""

from pathlib import Path

import complete_checkpoint
import pytest

from mb_checkpoint import CheckpointNotFoundError, select_checkpoint
from mb_checkpoint.errors import IncompleteCheckpointError
from mb_checkpoint.formats.layout import WEIGHTS
from mb_checkpoint.load.select import find_problems


def outcome(path, **options):
    found = select_checkpoint(path, **options)
    return found.path.name, found.found_by, [(each.path.name, each.reason) for each in found.skipped]


def test_an_empty_folder_selects_none(tmp_path):
    assert select_checkpoint(tmp_path) is None
    assert select_checkpoint(tmp_path / "missing") is None


def test_the_tracker_decides(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    complete_checkpoint.save(tmp_path, 20)
    assert outcome(tmp_path) == ("iter_0000020", "tracker", [])


def test_a_folder_that_is_a_checkpoint_is_taken_as_it_is(tmp_path):
    complete_checkpoint.save(tmp_path, 20)
    complete_checkpoint.save(tmp_path, 30)
    assert outcome(tmp_path / "iter_0000020") == ("iter_0000020", "path", [])


def test_a_wanted_step_beats_the_tracker(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    complete_checkpoint.save(tmp_path, 20)
    assert outcome(tmp_path, step=10) == ("iter_0000010", "ckpt_step", [])


def test_a_wanted_step_that_is_missing_is_an_error_that_lists_the_steps(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    complete_checkpoint.save(tmp_path, 20)
    with pytest.raises(CheckpointNotFoundError, match="steps there: 20, 10"):
        select_checkpoint(tmp_path, step=15)


def test_a_tracker_to_a_missing_folder_falls_back_to_the_newest_complete_one(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    complete_checkpoint.save(tmp_path, 20)
    (tmp_path / "iter_0000020").rename(tmp_path / "gone")
    assert outcome(tmp_path) == ("iter_0000010", "newest complete", [("iter_0000020", "no such folder")])


def test_checkpoints_with_missing_or_short_files_are_skipped_with_the_reason(tmp_path):
    for step in (10, 20, 30):
        complete_checkpoint.save(tmp_path, step)
    (tmp_path / "iter_0000030" / "metadata.json").unlink()
    (data,) = (tmp_path / "iter_0000020").glob("*.distcp")
    size = data.stat().st_size
    data.write_bytes(data.read_bytes()[:-7])
    assert outcome(tmp_path) == (
        "iter_0000010",
        "newest complete",
        [
            ("iter_0000030", "lacks metadata.json"),
            ("iter_0000020", f"{data.name} has {size - 7} of {size} bytes"),
        ],
    )


def test_a_missing_data_file_and_a_damaged_index_are_found(tmp_path):
    for step in (10, 20, 30):
        complete_checkpoint.fill(tmp_path / f"iter_{step:07d}", step)
    (data,) = (tmp_path / "iter_0000030").glob("*.distcp")
    data.unlink()
    (tmp_path / "iter_0000020" / ".metadata").write_bytes(b"\x80\x04")
    reasons = dict(outcome(tmp_path)[2])
    assert reasons["iter_0000030"] == f"lacks {data.name}"
    assert reasons["iter_0000020"].startswith(".metadata cannot be read")


def test_a_lost_manifest_is_noticed_and_other_programs_have_none(tmp_path):
    for step in (10, 20):
        complete_checkpoint.save(tmp_path, step)
    (tmp_path / "iter_0000020" / "manifest.json").unlink()
    name, _, ((lost, reason),) = outcome(tmp_path)
    assert (name, lost) == ("iter_0000010", "iter_0000020")
    assert reason.startswith("lacks manifest.json, with which it was committed")
    assert find_problems(complete_checkpoint.fill(tmp_path / "iter_0000030", 30)) == []


@pytest.mark.parametrize("file", ["", ".metadata", "train_state.pt"])
def test_unreadable_checkpoints_are_skipped(tmp_path, monkeypatch, file):
    for step in (10, 20):
        complete_checkpoint.save(tmp_path, step)
    monkeypatch.chdir(tmp_path)
    passed = [("iter_0000020", f"{file or 'the folder'} cannot be read (Permission denied)")]
    with complete_checkpoint.unreadable(Path("iter_0000020") / file):
        assert outcome(Path()) == ("iter_0000010", "newest complete", passed)


def test_a_changed_byte_anywhere_in_an_index_is_no_crash(tmp_path):
    index = complete_checkpoint.fill(tmp_path / "iter_0000010", 10) / ".metadata"
    content = index.read_bytes()
    for position in range(0, len(content), 3):
        index.write_bytes(content[:position] + bytes([content[position] ^ 0x51]) + content[position + 1 :])
        assert isinstance(find_problems(index.parent), list)


def test_a_damaged_tracker_gives_way_to_the_other_one(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    (tmp_path / "latest_train_state.pt").write_bytes(b"")
    name, found_by, passed = outcome(tmp_path)
    assert (name, found_by, passed[0][0]) == ("iter_0000010", "tracker", "latest_train_state.pt")


@pytest.mark.parametrize("content", ["soon", "9" * 5000])  # Python converts at most 4,300 digits
def test_two_damaged_trackers_give_way_to_the_newest_complete_folder(tmp_path, content):
    complete_checkpoint.save(tmp_path, 10)
    (tmp_path / "latest_train_state.pt").unlink()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(content)
    passed = [("latest_checkpointed_iteration.txt", f"holds '{content[:40]}', neither a step nor 'release'")]
    assert outcome(tmp_path) == ("iter_0000010", "newest complete", passed)


def test_complete_folders_without_any_tracker_are_found(tmp_path):
    complete_checkpoint.fill(tmp_path / "iter_0000010", 10)
    assert outcome(tmp_path) == ("iter_0000010", "newest complete", [])


def test_a_release_folder_is_followed(tmp_path):
    (complete_checkpoint.fill(tmp_path / "release", 0) / "train_state.pt").unlink()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert outcome(tmp_path) == ("release", "tracker", [])


def test_a_tracker_without_a_complete_checkpoint_is_an_error_with_the_reasons(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    (tmp_path / "iter_0000010" / ".metadata").unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"iter_0000010: lacks \.metadata"):
        select_checkpoint(tmp_path)


def test_an_incomplete_checkpoint_that_is_named_is_an_error(tmp_path):
    complete_checkpoint.fill(tmp_path / "iter_0000010", 10)
    (tmp_path / "iter_0000010" / "train_state.pt").unlink()
    (
        tmp_path / "iter_0000010" / "run_config.yaml"
    ).touch()  # without it, Megatron-LM may have written the folder
    with pytest.raises(IncompleteCheckpointError, match=r"lacks train_state\.pt"):
        select_checkpoint(tmp_path / "iter_0000010")
    assert select_checkpoint(tmp_path / "iter_0000010", wanted=WEIGHTS).step == 10
