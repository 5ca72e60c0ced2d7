"""Folders, disks and files that are lost while a run trains: nothing is lost in silence."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from runs import events, losses, metrics, train_here

from mb_checkpoint.errors import CheckpointSaveError
from mb_data import IndexedFormatError
from mb_loop import Callback
from mb_metrics.errors import DamagedRunFileError
from mb_trainer.errors import RunFolderError


class AtStep(Callback):
    """Call a function before a step."""

    def __init__(self, step, do):
        self.step, self.do = step, do

    def on_train_step_start(self, context):
        if context.state.train_state.step == self.step - 1:
            self.do()


def test_a_run_folder_that_is_deleted_is_made_again(overrides, tmp_path, capfd):
    out = tmp_path / "run"
    outcome = train_here(overrides, out, callbacks=(AtStep(13, lambda: shutil.rmtree(out)),))
    assert outcome.reason == "finished"
    assert {*losses(out)} == {*range(1, 21)}
    assert next(event for event, _ in events(out)) == "start"
    assert (out / "run_config.yaml").is_file()
    assert (out / "checkpoints" / "iter_0000020").is_dir()
    assert "loading Megatron Core" in (out / "log.txt").read_text()
    reported = capfd.readouterr().err
    assert f"warning: {out}: was deleted or moved while the run trains" in reported
    assert (
        f"warning: {out}/checkpoints: was deleted or moved while the run trains; its checkpoints are lost"
        in reported
    )


def test_checkpoints_that_are_deleted_are_reported(overrides, tmp_path, capfd):
    out = tmp_path / "run"
    train_here(overrides, out, callbacks=(AtStep(13, lambda: shutil.rmtree(out / "checkpoints")),))
    assert "its checkpoints are lost, and a restart begins with the first one" in capfd.readouterr().err
    assert [step for event, step in events(out) if event == "save"] == [10, 20]


class Began(Callback):
    """Records that the run began to build its parts."""

    began = False

    def on_data_init_start(self, context):
        self.began = True


def test_a_second_trainer_is_refused_before_its_model_is_built(overrides, tmp_path):
    out, began = tmp_path / "run", Began()
    out.mkdir()
    holder = os.open(out, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(RunFolderError, match="another trainer is at work in this run folder"):
        train_here(overrides, out, callbacks=(began,))
    os.close(holder)
    assert not began.began
    assert [*out.iterdir()] == []


def test_a_trainer_that_takes_a_deleted_folder_is_not_disturbed(overrides, tmp_path):
    """The folder that is made again belongs to the other one, which has locked it."""
    out, holders = tmp_path / "run", []

    def take():
        shutil.rmtree(out)
        out.mkdir()
        (out / "metrics.jsonl").write_text('{"step": 1, "time": 1.0}\n')
        holders.append(os.open(out, os.O_RDONLY))
        fcntl.flock(holders[0], fcntl.LOCK_EX)

    with pytest.raises(RunFolderError, match="another trainer is at work"):
        train_here(overrides, out, callbacks=(AtStep(3, take),))
    os.close(holders[0])
    assert (out / "metrics.jsonl").read_text() == '{"step": 1, "time": 1.0}\n'


def test_a_failure_before_the_first_write_leaves_no_folder(overrides, tmp_path):
    class Fails(Callback):
        def on_data_init_start(self, context):
            raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        train_here(overrides, tmp_path / "run", callbacks=(Fails(),))
    assert not (tmp_path / "run").exists()


def test_the_description_of_a_killed_writer_whose_number_lives_again_is_no_lock(overrides, tmp_path):
    root = tmp_path / "run" / "checkpoints"
    root.mkdir(parents=True)
    (root / ".writer").write_text(f"process {os.getpid()} on here (an earlier run)")
    assert train_here(overrides, tmp_path / "run").reason == "finished"


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder):
    """Use up the space of a disk."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 8, 1):
            with suppress(OSError):  # no space left
                while True:
                    file.write(bytes(size))


@pytest.mark.slow
def test_the_end_of_a_run_does_not_wait_for_the_full_disk_of_its_folder(overrides, disk, tmp_path):
    words = [*overrides, f"checkpoint.save={tmp_path}/checkpoints"]
    began = []

    def full():
        fill(disk)
        began.append(time.monotonic())

    outcome = train_here(words, disk / "run", callbacks=(AtStep(12, full),))
    assert (outcome.reason, outcome.step) == ("finished", 20)
    assert time.monotonic() - began[0] < 45  # before: two minutes at the end
    assert (tmp_path / "checkpoints" / "iter_0000020").is_dir()


@pytest.mark.slow
def test_a_disk_that_becomes_read_only_ends_the_run_with_an_error_and_keeps_what_was_saved(
    overrides, disk, tmp_path
):
    """The disk of the checkpoints: the system refuses this for a disk with files that are open for writing."""
    words, out = [*overrides, f"checkpoint.save={disk}/checkpoints"], tmp_path / "run"

    def mount(option):
        subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)

    with pytest.raises(CheckpointSaveError, match=r"(?i)read-only file system"):
        train_here(words, out, callbacks=(AtStep(12, lambda: mount("ro")),))
    mount("rw")
    again = train_here(words, out)
    assert (again.reason, [step for event, step in events(out) if event == "resume"]) == ("finished", [10])
    assert {*losses(out)} == {*range(1, 21)}


@pytest.mark.parametrize("jump", [-86400.0, 86400.0], ids=["a day back", "a day forward"])
def test_a_jump_of_the_clock_changes_no_step(overrides, tmp_path, monkeypatch, jump):
    train_here(overrides, tmp_path / "steady")
    real = time.time

    def set_clock():
        monkeypatch.setattr(time, "time", lambda: real() + jump)

    outcome = train_here(overrides, tmp_path / "run", callbacks=(AtStep(7, set_clock),))
    assert (outcome.reason, outcome.step, outcome.saved) == ("finished", 20, True)
    assert losses(tmp_path / "run") == losses(tmp_path / "steady")
    assert all(row.get("iteration-time", 1.0) < 60 for row in metrics(tmp_path / "run"))
    assert train_here(overrides, tmp_path / "run").saved is False  # complete: nothing to do


class DiesAtLastNonPersistentSave(Callback):
    """Ends the run between the non-persistent save of the last step and the persistent one."""

    def on_checkpoint_save(self, context):
        if context.save.non_persistent and context.save.step == 20:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["global", "local"])
def test_a_last_step_that_has_only_a_non_persistent_checkpoint_is_saved_at_the_restart(
    overrides, tmp_path, kind
):
    out, local = tmp_path / "run", []
    if kind == "local":
        pytest.importorskip("nvidia_resiliency_ext")
        local = [f"checkpoint.non_persistent_local_ckpt_dir={tmp_path / 'node'}"]
    words = [
        *overrides,
        *local,
        f"checkpoint.non_persistent_ckpt_type={kind}",
        "checkpoint.save_interval=15",
        "checkpoint.non_persistent_save_interval=10",
    ]
    with pytest.raises(KeyboardInterrupt):
        train_here(words, out, callbacks=(DiesAtLastNonPersistentSave(),))
    last = out / "checkpoints" / "iter_0000020"
    assert not last.exists()
    again = train_here(words, out)
    assert (again.reason, again.step, again.saved) == ("finished", 20, True)
    assert [event for event in events(out) if event[0] in ("resume", "save")][-2:] == [
        ("resume", 20),
        ("save", 20),
    ]
    assert last.is_dir()
    assert "the run is complete (20 steps)" in train_here(words, out).message


@pytest.mark.slow
def test_data_that_are_overwritten_while_they_are_read_are_named(overrides, tmp_path):
    cache = tmp_path / "cache"

    def overwrite():
        time.sleep(0.05)
        for file in cache.rglob("*.bin"):
            file.write_bytes(b"\xff" * file.stat().st_size)  # ids outside of the vocabulary

    words = [*overrides, f"dataset.cache_dir={cache}"]
    with pytest.raises(Exception) as failed:
        train_here(words, tmp_path / "run", callbacks=(AtStep(3, overwrite),))
    notes = failed.value.__notes__
    assert notes
    for note in notes:  # of each file that was changed
        assert note.startswith(f"dataset: {cache}"), notes
        assert ".bin: was changed at" in note


def test_data_that_are_cut_short_while_they_are_read_are_the_first_cause(overrides, tmp_path):
    """The read of a mapped file beyond its end would kill the rank that makes it."""
    cache, out, cut = tmp_path / "cache", tmp_path / "run", []

    def cut_short():
        for file in cache.rglob("*.bin"):
            cut.append(file)
            os.truncate(file, 10)

    words = [*overrides, f"dataset.cache_dir={cache}", "dataset.num_workers=0"]
    with pytest.raises(IndexedFormatError, match=r"\.bin: was cut short from \d+ to 10 bytes") as failed:
        train_here(words, out, callbacks=(AtStep(13, cut_short),))
    assert str(failed.value).partition(": ")[0] in map(str, cut)
    assert [step for event, step in events(out) if event == "save"] == [10]
    shutil.rmtree(cache)  # it is built again
    assert train_here(words, out).reason == "finished"
    assert [step for event, step in events(out) if event == "resume"] == [10]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_a_console_that_cannot_be_written_does_not_end_the_run(overrides, tmp_path, processes):
    """As with `mb pretrain > FILE` on a full disk."""
    out = tmp_path / "run"
    words = [sys.executable, "-m", "mb_trainer", "pretrain", *overrides]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [*words, "--nproc", str(processes), "--out", str(out)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, {*losses(out)}) == (0, {*range(1, 21)}), done.stderr
    assert (out / "checkpoints" / "iter_0000020").is_dir()
    assert "no space left on device; the run continues" in (out / "log.txt").read_text()


@pytest.mark.slow
def test_a_run_whose_standard_streams_are_closed_trains(overrides, tmp_path):
    """As `mb pretrain <&- >&- 2>&-`, on two ranks; its output is in log.txt."""
    out = tmp_path / "run"
    words = [sys.executable, "-m", "mb_trainer", "pretrain", *overrides, "--nproc", "2", "--out", str(out)]
    done = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words], check=False)
    assert (done.returncode, {*losses(out)}) == (0, {*range(1, 21)})
    assert (out / "checkpoints" / "iter_0000020").is_dir()
    assert "finished all 20 steps" in (out / "log.txt").read_text()


@pytest.mark.parametrize("name", ["run_config.yaml", "metrics.jsonl", "events.jsonl", "log.txt"])
def test_a_named_pipe_in_a_run_folder_is_rejected_before_it_is_opened(overrides, tmp_path, name):
    out = tmp_path / "run"
    out.mkdir()
    os.mkfifo(out / name)
    with pytest.raises(DamagedRunFileError, match=rf"{name}: is not a file, but a folder, a named pipe"):
        train_here(overrides, out)
