"""A reader sees either a complete checkpoint or none, whenever the writer dies."""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import complete_checkpoint
import pytest

from mb_checkpoint import select_checkpoint, write_atomically
from mb_checkpoint.errors import CheckpointFolderError
from mb_checkpoint.formats import layout
from mb_checkpoint.formats.manifest import Manifest
from mb_checkpoint.save.commit import (
    check_writable,
    commit,
    fsync_and_write_manifest,
    open_staging,
    remove_folder,
    unwritable_reason,
)
from mb_checkpoint.save.retention import prune

FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "tempfile.mkstemp"}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_atomically(tmp_path):
    path = tmp_path / "tracker"
    write_atomically(path, b"10")
    write_atomically(path, b"20")
    assert (path.read_bytes(), names(tmp_path)) == (b"20", ["tracker"])


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path):
    write_atomically(tmp_path / "tracker", b"10")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "tracker", "not bytes")
    assert ((tmp_path / "tracker").read_bytes(), names(tmp_path)) == (b"10", ["tracker"])


def test_a_commit_leaves_the_checkpoint_and_two_trackers(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    assert names(tmp_path) == ["iter_0000010", "latest_checkpointed_iteration.txt", "latest_train_state.pt"]
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "10"
    assert select_checkpoint(tmp_path).path == tmp_path / "iter_0000010"


def test_the_same_step_can_be_saved_again(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    (tmp_path / "iter_0000010" / "old").touch()
    complete_checkpoint.save(tmp_path, 10)
    assert "old" not in names(tmp_path / "iter_0000010")
    assert select_checkpoint(tmp_path).step == 10


def left_by_killed_processes(root):
    """Save a checkpoint, and leave what processes that were killed leave next to it."""
    complete_checkpoint.save(root, 10)
    for name in (
        ".removing_iter_0000001",
        ".removing_.replaced_iter_0000002",
        ".replaced_iter_0000010",
        ".saving_iter_0000005.0a1b2c3d",
    ):
        (root / name).mkdir()
        (root / name / "__0_0.distcp").touch()
    for name in (".latest_train_state.pt", ".latest_checkpointed_iteration.txt", "..storage_run"):
        (root / f"{name}.0123456789abcdef").touch()
    (root / ".best.0123456789abcdef").symlink_to("iter_0000010")
    return [".latest_other.0123456789abcdef", "iter_0000010", "latest_checkpointed_iteration.txt"]


def test_what_interrupted_saves_left_is_removed_by_the_next_one(tmp_path):
    kept = left_by_killed_processes(tmp_path)
    (tmp_path / kept[0]).touch()  # of another program
    staging = open_staging(tmp_path, 20)
    assert names(tmp_path) == sorted([*kept, "latest_train_state.pt", staging.name])


def test_prune_removes_what_interrupted_saves_left(tmp_path):
    kept = left_by_killed_processes(tmp_path)
    assert len(prune(tmp_path, keep=1, unfinished=True).removed) == 8
    assert names(tmp_path) == sorted([*kept[1:], "latest_train_state.pt"])


def test_what_cannot_be_removed_does_not_keep_a_run_from_saving(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    left = Path(".removing_iter_0000001")
    (left / "folder").mkdir(parents=True)
    with complete_checkpoint.unreadable(left):
        complete_checkpoint.save(Path(), 10)
    assert f"could not delete {left}, which an interrupted save has left: Permission denied" in caplog.text
    complete_checkpoint.save(Path(), 20)
    assert not left.exists()


def test_writing_the_manifest_reports_progress(tmp_path):
    (tmp_path / "data").write_bytes(bytes(5))
    reported = []
    assert (
        fsync_and_write_manifest(tmp_path, Manifest(step=1, files=()), progress=reported.append).total_bytes
        == sum(reported)
        == 5
    )


def test_two_who_remove_the_same_folder_are_not_in_each_others_way(tmp_path):
    left = tmp_path / ".removing_iter_0000001"
    for number in range(400):
        (left / f"{number % 20}").mkdir(parents=True, exist_ok=True)
        (left / f"{number % 20}" / f"{number}").touch()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(remove_folder, [left] * 4)) == [None] * 4
    assert names(tmp_path) == []


def test_what_cannot_be_removed_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        remove_folder(tmp_path / "file")


def test_a_kill_between_data_and_tracker_leaves_the_previous_checkpoint_in_force(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    complete_checkpoint.fill(tmp_path / "iter_0000020", 20)  # renamed, but no tracker names it yet
    found = select_checkpoint(tmp_path)
    assert (found.step, found.found_by) == (10, "tracker")
    assert [entry.path.name for entry in found.skipped] == ["iter_0000020"]


def committed_or_killed_at(point, root, staging, step):
    """Commit in a forked child that dies without warning at its n-th file operation; True if it survived."""
    child = os.fork()
    if child == 0:
        left = [point]

        def die(event, _arguments):
            if event in FILE_EVENTS:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)

        sys.addaudithook(die)
        fsync_and_write_manifest(staging, Manifest(step=step, files=()))
        commit(root, step, staging)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("step", [20, 10], ids=["a new step", "the same step again"])
def test_a_kill_at_any_file_operation_of_a_commit_loses_nothing(tmp_path, step):
    template = tmp_path / "template"
    complete_checkpoint.save(template, 10)
    staging = complete_checkpoint.fill(open_staging(template, step), step).name
    survived, points = False, 0
    while not survived:
        root = shutil.copytree(template, tmp_path / str(points))
        survived = committed_or_killed_at(points, root, root / staging, step)
        assert select_checkpoint(root).step in ({step} if survived else {10, step})
        complete_checkpoint.save(root, 30)
        assert layout.step_of(max(root.glob("iter_*"))) == 30
        points += 1
    assert points > 10


def test_a_folder_that_does_not_exist_yet_is_checked_and_not_made(tmp_path):
    check_writable(tmp_path / "runs" / "new")
    assert names(tmp_path) == []


def test_a_file_in_the_way_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointFolderError, match="file is not a folder"):
        check_writable(tmp_path / "file" / "checkpoints")


def test_a_path_that_cannot_be_looked_at_is_rejected(tmp_path):
    with pytest.raises(CheckpointFolderError, match="File name too long"):
        check_writable(tmp_path / ("x" * 300))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, where even root cannot make files")
def test_a_folder_that_takes_no_file_is_rejected():
    with pytest.raises(CheckpointFolderError, match=r"/proc takes no file \("):
        check_writable("/proc/checkpoints")


def test_a_tracker_has_the_permissions_of_other_files(tmp_path):
    (tmp_path / "other").touch()
    write_atomically(tmp_path / "tracker", b"10")
    assert (tmp_path / "tracker").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_the_reason_why_a_folder_cannot_be_written_is_known_before_it_is_made(tmp_path):
    (tmp_path / "file").touch()
    assert unwritable_reason(tmp_path / "file" / "run") == f"{tmp_path / 'file'} is not a folder"
    assert unwritable_reason(tmp_path / "new" / "run") is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
