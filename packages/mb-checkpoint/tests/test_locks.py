"""Exclusive locks on folders."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from mb_checkpoint.locks import exclusive_lock


def in_use():
    """Return the error of a folder in use."""
    return RuntimeError("in use")


def test_a_second_process_is_kept_out_until_the_first_has_ended(tmp_path):
    with (
        exclusive_lock(tmp_path, in_use),
        pytest.raises(RuntimeError, match="in use"),
        exclusive_lock(tmp_path, in_use, timeout_seconds=0),
    ):
        pass
    with exclusive_lock(tmp_path, in_use):
        pass


def test_a_folder_without_locks_excludes_no_process(tmp_path, monkeypatch):
    def no_locks(_descriptor, _operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with exclusive_lock(tmp_path, in_use), exclusive_lock(tmp_path, in_use):
        assert tmp_path.is_dir()


def test_a_missing_folder_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError), exclusive_lock(tmp_path / "none", in_use):
        pass


FORK = """
import os, sys, time
from pathlib import Path
from mb_checkpoint.locks import exclusive_lock, reader_lock
with exclusive_lock(Path(sys.argv[1]), RuntimeError), reader_lock(Path(sys.argv[1]).parent):
    child = os.fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
    os._exit(0)
"""


def test_a_process_that_the_holder_has_forked_does_not_hold_the_lock(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", FORK, str(folder)], stdout=subprocess.PIPE, text=True)
    child = int(holder.stdout.readline())
    assert holder.wait() == 0
    try:
        # The fork closes its copies when it is first scheduled, which may be after its parent has ended.
        with exclusive_lock(folder, in_use), exclusive_lock(tmp_path, in_use):
            os.kill(child, 0)  # it is alive
    finally:
        os.kill(child, signal.SIGKILL)
        holder.stdout.close()
