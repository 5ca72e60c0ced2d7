"""What happens to the folder of a run: deleted, read-only, full, moved, copied, or with the lock of a dead process."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mb_checkpoint import TorchCheckpointer, select_checkpoint, verify_checkpoint
from mb_checkpoint.context import FailedSave
from mb_checkpoint.errors import CheckpointFolderError
from mb_checkpoint.formats.layout import STEP_TRACKER
from mb_checkpoint.locks import WRITER_FILE, writer_lock


class Run:
    """A run of one layer."""

    def __init__(self, folder, **options):
        torch.manual_seed(1)
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.lines = []
        self.checkpointer = TorchCheckpointer(
            folder, {"model": self.model, "optimizer": self.optimizer}, log=self.lines.append, **options
        )

    def train(self, steps, *, before_save=lambda _step: None):
        """Train up to a step with a checkpoint after each; return the losses and the outcomes of the saves."""
        losses, outcomes = {}, {}
        with self.checkpointer as checkpointer:
            for step in range(checkpointer.load() + 1, steps + 1):
                self.optimizer.zero_grad()
                loss = self.model(torch.randn(2, 4)).square().mean()
                loss.backward()
                self.optimizer.step()
                losses[step] = loss.item()
                before_save(step)
                outcome = checkpointer.save(step)
                outcomes[step] = checkpointer.poll(blocking=True) or outcome
        return losses, outcomes


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("whole")).train(6)[0]


@pytest.mark.parametrize("background", [False, True])
def test_a_folder_that_is_deleted_during_a_run_is_made_again(whole, tmp_path, background):
    folder = tmp_path / "run"

    def delete(step):
        if step == 3:
            shutil.rmtree(folder)

    losses, outcomes = Run(folder, async_save=background).train(4, before_save=delete)
    assert not any(isinstance(outcome, FailedSave) for outcome in outcomes.values())
    assert sorted(path.name for path in folder.glob("iter_*")) == ["iter_0000003", "iter_0000004"]
    rest, _ = Run(folder).train(6)
    assert {**losses, **rest} == whole


@pytest.mark.slow
def test_a_folder_that_is_deleted_while_a_save_is_written_costs_that_save(whole, tmp_path):
    folder = tmp_path / "run"
    run = Run(folder, async_save=True)
    with run.checkpointer as checkpointer:
        checkpointer.load()
        checkpointer.save(1)
        assert checkpointer.poll(blocking=True).step == 1
        os.kill(checkpointer._saver.writer.pid, 19)  # stopped: nothing is written before the deletion
        checkpointer.save(2)
        shutil.rmtree(folder)
        os.kill(checkpointer._saver.writer.pid, 18)
        failed = checkpointer.poll(blocking=True)
        assert isinstance(failed, FailedSave)
        assert "No such file or directory" in failed.message
        checkpointer.save(3)
        assert checkpointer.poll(blocking=True).step == 3
    assert select_checkpoint(folder).step == 3
    assert verify_checkpoint(folder) == {folder / "iter_0000003": []}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EROFS, "Read-only file system"),
        (errno.ENOSPC, "No space left on device"),
        (errno.EIO, "Input/output"),
    ],
)
def test_a_disk_that_takes_nothing_for_a_while_costs_the_saves_of_that_time(
    whole, tmp_path, monkeypatch, number, text
):
    folder, real = tmp_path / "run", Path.mkdir

    def refuse(path, *arguments, **options):
        raise OSError(number, os.strerror(number), str(path))

    def remount(step):
        monkeypatch.setattr(Path, "mkdir", refuse if step in (3, 4) else real)

    losses, outcomes = Run(folder).train(6, before_save=remount)
    assert losses == whole
    failed = [step for step, outcome in outcomes.items() if isinstance(outcome, FailedSave)]
    assert failed == [3, 4]
    assert text in outcomes[3].message
    assert [path.name for path in sorted(folder.glob("iter_*"))] == [
        f"iter_000000{step}" for step in (1, 2, 5, 6)
    ]


def test_a_save_that_fails_at_its_last_fsync_leaves_a_complete_checkpoint_that_the_trackers_name(
    tmp_path, monkeypatch
):
    tracker, real = tmp_path / STEP_TRACKER, os.fsync

    def fail_once_named(descriptor):
        of_folder = os.path.samestat(os.fstat(descriptor), tmp_path.stat())
        if of_folder and tracker.is_file() and tracker.read_text() == "2":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once_named)
    _, outcomes = Run(tmp_path).train(2)
    assert isinstance(outcomes[2], FailedSave)
    assert "Input/output error. Earlier checkpoints are unchanged, and no tracker" in outcomes[2].message
    assert tracker.read_text() == "2"
    assert verify_checkpoint(tmp_path) == {tmp_path / "iter_0000001": [], tmp_path / "iter_0000002": []}


@pytest.mark.parametrize("change", [shutil.move, shutil.copytree])
def test_a_folder_that_was_moved_or_copied_resumes(whole, tmp_path, change):
    losses, _ = Run(tmp_path / "one").train(3)
    change(str(tmp_path / "one"), str(tmp_path / "two"))
    rest, _ = Run(tmp_path / "two").train(6)
    assert {**losses, **rest} == whole


def test_the_lock_of_a_killed_run_is_released_by_the_system(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from mb_checkpoint.locks import writer_lock\n"
        "with writer_lock(Path(sys.argv[1]), run='the first'):\n    os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, env=environment)
    assert killed.returncode == -9
    assert "the first" in (tmp_path / WRITER_FILE).read_text()  # left behind
    with writer_lock(tmp_path, run="the second", timeout_seconds=0.0):
        assert "the second" in (tmp_path / WRITER_FILE).read_text()
        with (
            pytest.raises(CheckpointFolderError, match=r"process \d+ on .* \(the second\) saves there"),
            writer_lock(tmp_path, run="the third", timeout_seconds=0.0),
        ):
            pass
