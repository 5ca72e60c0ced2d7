import signal
from types import SimpleNamespace

import pytest

from mb_resilience import DeadlineWatcher, StopRequests, StopSetupError, watch_stop_requests

ALONE = SimpleNamespace(rank=0, world_size=1, attempt="0", is_logging_rank=True)


def make(watcher, *, minutes_left=None):
    deadline = None
    if minutes_left is not None:
        deadline = DeadlineWatcher(60, start_time=0.0, what="limit", clock=lambda: 60 * (60 - minutes_left))
    return StopRequests(watcher, deadline=deadline)


def test_a_signal_stops_after_a_step_and_within_an_evaluation():
    watcher = SimpleNamespace(received=None)
    stops = make(watcher, minutes_left=1)
    assert (stops.stop_requested(1), stops.duration_stop_requested(1), stops.stop_evaluation()) == (
        None,
        None,
        False,
    )
    watcher.received = "SIGTERM"
    assert (stops.stop_requested(2), stops.duration_stop_requested(2)) == ("SIGTERM on rank 0", None)
    assert [stops.stop_evaluation() for _ in range(3)] == [True] * 3
    assert stops.evaluation_stopped


def test_so_does_the_deadline():
    stops = make(SimpleNamespace(received=None), minutes_left=-1)
    assert stops.duration_stop_requested(1) == "limit has passed on rank 0"
    assert (stops.stop_requested(1), stops.stop_evaluation()) == (None, True)


def test_without_a_deadline_there_is_no_request_for_it():
    assert make(SimpleNamespace(received=None)).duration_stop_requested is None


def test_a_run_receives_its_signal_and_announces_it(capfd):
    train = SimpleNamespace(exit_signal=signal.SIGUSR1, exit_duration_in_mins=None)
    with watch_stop_requests(train, world=ALONE) as stops:
        assert stops.stop_requested(1) is None
        signal.raise_signal(signal.SIGUSR1)
        assert stops.stop_requested(2) == "SIGUSR1 on rank 0"
        assert stops.duration_stop_requested is None
    assert capfd.readouterr().out.startswith("\nSIGUSR1: stopping after this step")


def test_a_run_ends_at_its_duration_limit():
    train = SimpleNamespace(exit_signal=signal.SIGUSR1, exit_duration_in_mins=60)
    with watch_stop_requests(train, world=ALONE, start_time=0.0) as stops:
        why = "train.exit_duration_in_mins=60 has passed on rank 0"
        assert stops.duration_stop_requested(1) == why
    with watch_stop_requests(train, world=ALONE) as stops:  # the start is unknown
        assert stops.duration_stop_requested is None


def test_several_ranks_need_a_store():
    world = SimpleNamespace(rank=0, world_size=2, attempt="0", is_logging_rank=False)
    train = SimpleNamespace(exit_signal=signal.SIGUSR1, exit_duration_in_mins=None)
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(StopSetupError, match="without a store"), watch_stop_requests(train, world=world):
        pass
    assert signal.getsignal(signal.SIGUSR1) == before
