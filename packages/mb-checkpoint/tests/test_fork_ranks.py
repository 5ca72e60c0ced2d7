"""Errors after the process that forks the ranks has ended."""

import os
import signal
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("ranks are forked, with signals of Linux", allow_module_level=True)

import fork_ranks
from fork_ranks import ForkServer, RanksFailedError


def test_each_run_after_the_end_is_an_error_and_closing_twice_is_not():
    fork_server = ForkServer()
    fork_server._process.kill()
    fork_server._process.wait()
    for _ in range(2):
        with pytest.raises(RanksFailedError, match="the process that forks the ranks has ended"):
            fork_server.run(1, print, timeout_seconds=1.0)
    fork_server.close()


def test_no_answer_is_an_error_and_ends_the_process(monkeypatch):
    monkeypatch.setattr(fork_ranks, "STARTUP_SECONDS", 0.0)
    fork_server = ForkServer()
    os.kill(fork_server._process.pid, signal.SIGSTOP)
    with pytest.raises(RanksFailedError, match=r"has not answered in 0.1 s"):
        fork_server.run(1, print, timeout_seconds=0.1)
    assert fork_server._process.returncode == -signal.SIGKILL
    with pytest.raises(RanksFailedError, match="has ended"):
        fork_server.run(1, print, timeout_seconds=0.1)
