import signal
import time
from types import SimpleNamespace

import pytest

from mb_config import TrainingConfig
from mb_launch import read_world

stops = pytest.importorskip("mb_trainer.stops")

WORLD = read_world({})


def made(watcher, minutes=None, *, minutes_ago=0):
    train = TrainingConfig(exit_duration_in_mins=minutes)
    return stops.Stops(watcher, train, start_time=time.time() - 60 * minutes_ago, world=WORLD)


def test_a_signal_is_a_wish_after_a_step_and_within_an_evaluation():
    watcher = SimpleNamespace(received=None)
    found = made(watcher, 60)
    assert (found.wish(1), found.time(1), found.leave_evaluation()) == (None, None, False)
    watcher.received = "SIGTERM"
    assert (found.wish(2), found.time(2)) == ("SIGTERM on rank 0", None)
    assert [found.leave_evaluation() for _ in range(3)] == [True] * 3


def test_so_is_the_time():
    found = made(SimpleNamespace(received=None), 60, minutes_ago=61)
    assert found.time(1) == "train.exit_duration_in_mins=60 has passed on rank 0"
    assert (found.wish(1), found.leave_evaluation()) == (None, True)


def test_without_a_limit_nobody_asks_for_the_time():
    assert made(SimpleNamespace(received=None)).time is None


def test_a_signal_that_comes_late_is_ignored_where_the_process_is_ours():
    before = signal.getsignal(signal.SIGUSR1)
    stops.ignore_late(signal.SIGUSR1)
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_after_training_an_evaluation_alone_is_never_given_up():
    assert stops.never() is False
