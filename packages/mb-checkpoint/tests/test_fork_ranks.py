"""What is said when the process that forks the ranks is gone."""

import os
import signal
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("ranks are forked, with signals of Linux", allow_module_level=True)

import fork_ranks
from fork_ranks import Forge, RanksFailedError


def test_each_run_after_the_end_says_so_and_closing_twice_is_no_error():
    forge = Forge()
    forge._process.kill()
    forge._process.wait()
    for _ in range(2):
        with pytest.raises(RanksFailedError, match="the process that forks the ranks has ended"):
            forge.run(1, print, timeout_seconds=1.0)
    forge.close()


def test_no_answer_is_said_and_ends_the_process(monkeypatch):
    monkeypatch.setattr(fork_ranks, "STARTUP_SECONDS", 0.0)
    forge = Forge()
    os.kill(forge._process.pid, signal.SIGSTOP)
    with pytest.raises(RanksFailedError, match=r"has not answered in 0.1 s"):
        forge.run(1, print, timeout_seconds=0.1)
    assert forge._process.returncode == -signal.SIGKILL
    with pytest.raises(RanksFailedError, match="has ended"):
        forge.run(1, print, timeout_seconds=0.1)
