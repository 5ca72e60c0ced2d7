"""The callback that kills its process after a checkpoint."""

import os
import signal
from types import SimpleNamespace

import pytest

from mb_verify import KillAfterCheckpoint
from mb_verify.resume.kill import tracked_step


class Clock:
    """Clock that advances only while its `sleep` is called."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds


def begin_step(killer, step):
    killer.on_train_step_start(SimpleNamespace(state=SimpleNamespace(train_state=SimpleNamespace(step=step))))


def test_steps_wait_longer_and_longer_for_a_background_save_until_it_is_complete(tmp_path):
    clock = Clock()
    tracker = tmp_path / "latest.txt"
    killer = KillAfterCheckpoint(
        7, tracker=tracker, kill=False, pause=0.1, longest=0.2, clock=clock, sleep=clock.sleep
    )
    ends = []
    for step in (7, 8, 9, 10):
        begin_step(killer, step)
        ends.append(clock.seconds)
    assert ends == pytest.approx([0.0, 0.1, 0.3, 0.5])
    tracker.write_text("7")
    begin_step(killer, 11)
    assert clock.seconds == ends[-1]


def test_the_process_is_killed_once_the_checkpoint_is_complete(tmp_path):
    tracker = tmp_path / "latest.txt"
    tracker.write_text("7")
    child = os.fork()
    if child == 0:
        try:
            begin_step(KillAfterCheckpoint(7, tracker=tracker, kill=True), 8)
        finally:
            os._exit(0)  # in any case: a child must not continue as pytest
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_tracker_that_is_being_written_holds_no_step(tmp_path):
    tracker = tmp_path / "latest.txt"
    assert tracked_step(tracker) is None
    tracker.write_text("")
    assert tracked_step(tracker) is None
    tracker.write_text("12\n")
    assert tracked_step(tracker) == 12
