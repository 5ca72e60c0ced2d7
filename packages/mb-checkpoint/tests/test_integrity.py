"""Integrity of checkpoints in a single process, and exclusion of a second writer."""

import os
import warnings
from contextlib import ExitStack

import complete_checkpoint
import pytest

from mb_checkpoint import CheckpointNotFoundError
from mb_checkpoint.errors import CheckpointFolderError, IncompleteCheckpointError, TrainStateError
from mb_checkpoint.inspect.integrity import first_intact, newest_intact, require_newest_intact
from mb_checkpoint.load.select import select_checkpoint
from mb_checkpoint.locks import WRITER_FILE, reader_lock, try_exclusive_lock, writer_lock
from mb_checkpoint.state.train_state import read_train_state


def test_a_checkpoint_with_a_flipped_bit_is_skipped_for_the_newest_intact_one(tmp_path):
    for step in (10, 20, 30):
        complete_checkpoint.save(tmp_path, step)
    complete_checkpoint.flip_bit(tmp_path / "iter_0000030")
    (tmp_path / "iter_0000020" / "manifest.json").write_text("{}")
    read = []
    found = newest_intact(tmp_path, progress=read.append)
    assert [each.path.name for each in (found, *found.skipped)] == [
        "iter_0000010",
        "iter_0000030",
        "iter_0000020",
    ]
    assert found.skipped[0].reason == "__0_0.distcp differs from the manifest (checksum)"
    assert sum(read) > (tmp_path / "iter_0000010" / "__0_0.distcp").stat().st_size


def test_a_damaged_checkpoint_of_a_run_folder_is_logged_and_the_previous_one_taken(tmp_path):
    root = tmp_path / "checkpoints"
    for step in (10, 20):
        complete_checkpoint.save(root, step)
    complete_checkpoint.flip_bit(root / "iter_0000020")
    lines = []
    assert require_newest_intact(tmp_path, purpose="export", log=lines.append).step == 10
    assert lines == [
        f"skipped {root}/iter_0000020: __0_0.distcp differs from the manifest (checksum)",
        f"taken instead: {root}/iter_0000010",
    ]


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_a_folder_without_checkpoints_is_bad_input(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFoundError, match=f"{name}: has no checkpoint to export") as caught:
        require_newest_intact(tmp_path / name, purpose="export")
    assert caught.value.bad_input


def test_contents_need_not_be_compared(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    complete_checkpoint.flip_bit(tmp_path / "iter_0000010")
    found = first_intact(lambda rejected: select_checkpoint(tmp_path, rejected=rejected), contents=False)
    assert (found.step, newest_intact(tmp_path / "none")) == (10, None)


def test_no_intact_checkpoint_is_an_error_that_names_each(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    complete_checkpoint.flip_bit(tmp_path / "iter_0000010")
    with pytest.raises(
        CheckpointNotFoundError, match=r"no complete checkpoint \(iter_0000010: __0_0.distcp differs"
    ):
        newest_intact(tmp_path)
    with pytest.raises(IncompleteCheckpointError, match=r"incomplete checkpoint: __0_0.distcp differs"):
        newest_intact(tmp_path / "iter_0000010")


def test_a_damaged_train_state_is_an_error_and_no_warning(tmp_path):
    (tmp_path / "latest_train_state.pt").write_bytes(bytes(range(128, 256)))
    with (
        warnings.catch_warnings(record=True) as caught,
        pytest.raises(TrainStateError, match="cannot be read"),
    ):
        read_train_state(tmp_path / "latest_train_state.pt")
    assert caught == []


def test_one_process_at_a_time_saves_below_a_folder_and_describes_itself(tmp_path):
    root = tmp_path / "new" / "checkpoints"
    with writer_lock(root, run="runs/a"):
        complete_checkpoint.save(root, 10)
        with reader_lock(root / "iter_0000010"):
            rejected = rf"{root}: process {os.getpid()} on .* \(runs/a\) saves there"
            with (
                pytest.raises(CheckpointFolderError, match=rejected),
                writer_lock(root, run="runs/b", timeout_seconds=0),
            ):
                pass
        (root / WRITER_FILE).unlink()
        with (
            pytest.raises(CheckpointFolderError, match="another process saves"),
            writer_lock(root, run="b", timeout_seconds=0),
        ):
            pass
    with writer_lock(root, run="runs/b"):
        assert (root / WRITER_FILE).is_file()
    assert not (root / WRITER_FILE).exists()


def test_a_writer_waits_for_a_lock_that_is_about_to_be_released(tmp_path):
    now, held = [0.0], ExitStack()

    def sleep(seconds):
        now[0] += seconds
        if now[0] > 3:
            held.close()

    held.enter_context(try_exclusive_lock(tmp_path))
    with writer_lock(tmp_path, run="b", timeout_seconds=5, clock=lambda: now[0], sleep=sleep):
        assert 3 < now[0] < 4


def test_a_writer_waits_for_a_limited_time(tmp_path):
    waits = []
    timing = {"timeout_seconds": 5, "clock": lambda: sum(waits), "sleep": waits.append}
    rejected = pytest.raises(CheckpointFolderError, match=r"\(runs/a\) saves there")
    with writer_lock(tmp_path, run="runs/a"), rejected, writer_lock(tmp_path, run="runs/b", **timing):
        pass
    assert 5 <= sum(waits) < 6
