"""A process and its child processes."""

import os
import signal
import subprocess
from multiprocessing.connection import wait

import pytest

from mb_host.ranks.spawned_process import SpawnedProcess, kill_group

WAIT_SECONDS = 60


@pytest.fixture
def lifeline():
    """Ends of a pipe; the first is readable when all copies of the second are closed."""
    ends = os.pipe()
    yield ends
    os.close(ends[0])


def start(lifeline, script):
    process = SpawnedProcess(["sh", "-c", script], env=os.environ, pass_fds=[lifeline[1]])
    os.close(lifeline[1])
    return process


def test_child_processes_end_with_their_process(lifeline):
    process = start(lifeline, "sleep 1000 & exit 3")
    assert process.wait(WAIT_SECONDS) == 3
    assert wait([lifeline[0]], timeout=WAIT_SECONDS)
    process.kill()
    process.send_signal(signal.SIGTERM)
    assert process.poll() == 3


def test_a_running_process_is_killed_with_its_child_processes(lifeline):
    process = start(lifeline, "sleep 1000 & sleep 1000")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert wait([lifeline[0]], timeout=WAIT_SECONDS)
    kill_group(process.pid)  # the group is empty


def test_a_process_that_is_reaped_elsewhere_has_ended(lifeline):
    process = start(lifeline, "exit 0")
    os.waitpid(process.pid, 0)
    assert process.wait(WAIT_SECONDS) == 0


def test_nothing_is_killed_by_the_id_of_a_process_that_is_reaped_elsewhere(lifeline):
    process = start(lifeline, "sleep 1000 & exit 0")
    os.waitpid(process.pid, 0)
    assert process.poll() == 0
    assert wait([lifeline[0]], timeout=0.5) == []
    kill_group(process.pid)
    assert wait([lifeline[0]], timeout=WAIT_SECONDS)
