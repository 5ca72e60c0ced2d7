import signal
from types import SimpleNamespace

import pytest

from mb_resilience import (
    AgreedStop,
    DeadlineWatcher,
    Rank0TimeoutError,
    StopOrderError,
    StopRequests,
    StopSetupError,
    watch_stop_requests,
)

ALONE = SimpleNamespace(rank=0, world_size=1, attempt="0", is_logging_rank=True)


class DictStore(dict):
    """Store in memory, with the interface of torch's."""

    def set(self, key, value):
        self[key] = value.encode()

    def get(self, key):
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)


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


def make_ranks(watchers, *, deadline=None, connections=None):
    store = DictStore()

    def connect():
        connections.append(store)
        return store

    connect = None if connections is None else connect
    return [
        StopRequests(
            watcher, deadline=deadline, store=store, rank=rank, world_size=len(watchers), connect=connect
        )
        for rank, watcher in enumerate(watchers)
    ]


def test_a_signal_within_an_evaluation_stops_it_and_then_the_step_on_all_ranks():
    watchers = [SimpleNamespace(received=None) for _ in range(3)]
    ranks = make_ranks(watchers)
    assert [rank.stop_requested(1) for rank in ranks] == [None] * 3
    watchers[2].received = "SIGTERM"
    stopped = [[rank.stop_evaluation() for rank in ranks] for _ in range(4)]
    assert stopped == [[False] * 3, [False] * 3, [True] * 3, [True] * 3]
    assert [rank.stop_requested(2) for rank in ranks] == ["SIGTERM on rank 2"] * 3
    with pytest.raises(StopOrderError, match=r"stop after step 2 \(signal SIGTERM on rank 2\)"):
        ranks[1].stop_requested(3)


def test_the_duration_limit_of_several_ranks_is_an_outcome_of_its_own():
    deadline = SimpleNamespace(received=None)
    ranks = make_ranks([SimpleNamespace(received=None) for _ in range(2)], deadline=deadline)
    polls = [(rank.stop_requested, rank.duration_stop_requested) for rank in ranks]
    assert [(signal(1), time(1)) for signal, time in polls] == [(None, None)] * 2
    deadline.received = "the time has passed"
    assert [(signal(2), time(2)) for signal, time in polls] == [(None, None)] * 2
    assert [(signal(3), time(3)) for signal, time in polls] == [(None, "the time has passed on rank 0")] * 2


def test_a_rank_has_one_connection_for_signals_time_and_evaluations():
    connections = []
    ranks = make_ranks(
        [SimpleNamespace(received=None) for _ in range(2)],
        deadline=SimpleNamespace(received=None),
        connections=connections,
    )
    assert len(connections) == len(ranks)


def test_a_rank_0_that_does_not_end_an_evaluation_is_named():
    store, now = DictStore(), iter(range(0, 10_000, 100))
    stop = AgreedStop(
        SimpleNamespace(received=None),
        store=store,
        rank=1,
        world_size=2,
        clock=lambda: next(now),
        sleep=lambda seconds: None,
    )
    assert (stop(7), store.set("mb_resilience/stop/0/decided", "1"), stop.between_steps()) == (None,) * 3
    with pytest.raises(
        Rank0TimeoutError,
        match="ended step 8, but rank 0 has not ended a round of its evaluation after step 7 within",
    ):
        stop(8)


def test_what_is_no_watcher_is_rejected():
    with pytest.raises(StopSetupError, match="is not a watcher"):
        StopRequests(lambda: None)


def test_several_ranks_need_a_store():
    world = SimpleNamespace(rank=0, world_size=2, attempt="0", is_logging_rank=False)
    train = SimpleNamespace(exit_signal=signal.SIGUSR1, exit_duration_in_mins=None)
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(StopSetupError, match="without a store"), watch_stop_requests(train, world=world):
        pass
    assert signal.getsignal(signal.SIGUSR1) == before
