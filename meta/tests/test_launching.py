"""Which of several failures is the cause, and what a process leaves behind for the launcher to tell."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mb_trainer.failures import ERROR_FOLDER, Failure, leave_failure, read_failures
from mb_trainer.ports import PortError, asked_port

launching = pytest.importorskip("mb_trainer.launching")

LATER = Failure(rank=0, time=20.0, text="connection closed by peer", exit_code=1)
EARLIER = Failure(rank=1, time=10.0, text="the cause", exit_code=2)

PASSED_ON = """
import os, signal, subprocess, sys
from mb_trainer.launching import forwarded_signals

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with forwarded_signals({signal.SIGUSR1}):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert child.wait(timeout=60) == -signal.SIGUSR1
"""
"""A process of its own, as all that it has started gets the signal."""


def ended(**codes):
    return {int(rank[1:]): SimpleNamespace(exitcode=code) for rank, code in codes.items()}


def test_the_earliest_failure_is_the_cause(tmp_path):
    found = launching.first_failure(ended(r0=1, r1=2), [LATER, EARLIER], logs=tmp_path)
    assert found == Failure(rank=1, time=10.0, text="rank 1: the cause", exit_code=2)


def test_a_killed_rank_is_the_cause_of_what_the_others_tell(tmp_path):
    found = launching.first_failure(ended(r0=1, r2=-signal.SIGKILL), [LATER], logs=tmp_path)
    assert (found.rank, found.text, found.exit_code) == (2, "rank 2 was killed by SIGKILL", 1)


def test_a_rank_that_the_launcher_ended_is_not_the_cause(tmp_path):
    found = launching.first_failure(ended(r0=-signal.SIGTERM), [LATER], logs=tmp_path)
    assert found.text == "rank 0: connection closed by peer"


def test_a_rank_that_says_nothing_is_told_with_its_last_words(tmp_path):
    file = tmp_path / "run" / "attempt_0" / "1" / "stderr.log"
    file.parent.mkdir(parents=True)
    file.write_text("one\ntwo\n")
    found = launching.first_failure(ended(r1=3), [], logs=tmp_path)
    assert found.text == "rank 1 ended with exit code 3; its last words:\none\ntwo"


@pytest.mark.parametrize(
    ("codes", "agreed"),
    [
        ([16, 16], 16),
        ([17, -signal.SIGTERM], 17),
        ([16, 1], None),
        ([16, 17], None),
        ([3], None),
        ([-9], None),
    ],
)
def test_the_codes_of_the_rerun_machine_are_handed_on(codes, agreed):
    assert launching.agreed_code(codes) == agreed


def test_a_failure_is_left_where_a_launcher_looks_and_nowhere_else(tmp_path):
    assert leave_failure(EARLIER, {}) is False
    assert leave_failure(EARLIER, {ERROR_FOLDER: str(tmp_path)}) is True
    assert read_failures(tmp_path) == [EARLIER]


def test_a_run_s_own_signal_is_passed_on_and_kills_nobody_here():
    subprocess.run([sys.executable, "-c", PASSED_ON], check=True, timeout=300)


def test_no_port_is_asked_for_unless_it_is_set():
    assert asked_port({}) is None


@pytest.mark.parametrize("text", ["", "http", "0", "70000"])
def test_a_port_that_is_none_is_refused(text):
    with pytest.raises(PortError, match="MASTER_PORT: must be a number from 1 to 65535"):
        asked_port({"MASTER_PORT": text})
