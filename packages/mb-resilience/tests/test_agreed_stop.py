"""Agreement between ranks that are threads with random delays, over a dictionary as the store."""

import random
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from mb_resilience import AgreedStop, Rank0TimeoutError, StopOrderError, StopSetupError


@dataclass
class StubWatcher:
    received: str | None = None


@dataclass
class DictStore:
    values: dict[str, bytes] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def set(self, key, value, /):
        with self.changed:
            self.values[key] = value.encode()
            self.changed.notify_all()

    def get(self, key, /):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, timeout=120)
            return self.values[key]

    def check(self, keys, /):
        with self.changed:
            return all(key in self.values for key in keys)


def run_ranks(
    world_size,
    *,
    steps,
    barrier,
    signals,
    seed=0,
    every=1,
    longest_pause=0.001,
    store=None,
    attempt="0",
    in_background=False,
):
    """Run ranks as threads; return for each rank the step and reason of its stop, or None.

    Args:
        barrier: synchronize the ranks in every step, as collectives do; without it they drift apart.
        signals: rank to (step in which the signal arrives, signal).
    """
    store = DictStore() if store is None else store
    meeting = threading.Barrier(world_size, timeout=120)
    results = ["did not end"] * world_size

    def rank_main(rank):
        pause = random.Random(seed * 100 + rank)
        watcher = StubWatcher()
        stop = AgreedStop(
            watcher,
            store=store,
            rank=rank,
            world_size=world_size,
            every=every,
            attempt=attempt,
            timeout_seconds=120,
            in_background=in_background,
        )
        results[rank] = None
        with closing(stop):
            results[rank] = first_stop(stop, rank, watcher, pause)

    def first_stop(stop, rank, watcher, pause):
        for step in range(1, steps + 1):
            if barrier:
                meeting.wait()
            time.sleep(pause.random() * longest_pause)
            if rank in signals and signals[rank][0] == step:
                watcher.received = signals[rank][1]
            why = stop(step)
            if why is not None:
                return step, why
        return None

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    return results


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_synchronized_ranks_stop_together_for_any_rank_and_step_of_the_signal(world_size):
    for seed in range(70):
        chance = random.Random(seed)
        rank, step = chance.randrange(world_size), chance.randint(1, 6)
        results = run_ranks(world_size, steps=9, barrier=True, signals={rank: (step, "SIGTERM")}, seed=seed)
        assert len(set(results)) == 1, (seed, results)
        stopped, why = results[0]
        assert step + 1 <= stopped <= step + 2, (seed, results)
        assert why == f"SIGTERM on rank {rank}"


def test_ranks_that_drift_apart_stop_together():
    for seed in range(100):
        chance = random.Random(seed)
        signals = {chance.randrange(3): (chance.randint(1, 20), "SIGTERM")}
        results = run_ranks(3, steps=60, barrier=False, signals=signals, seed=seed, longest_pause=0.0005)
        assert len(set(results)) == 1, (seed, results)


@pytest.mark.slow
@pytest.mark.parametrize("barrier", [True, False], ids=["synchronized", "drifting"])
def test_ranks_whose_threads_access_the_store_stop_together(barrier):
    for seed in range(60):
        chance = random.Random(seed)
        rank, step = chance.randrange(3), chance.randint(1, 20)
        results = run_ranks(
            3,
            steps=400,
            barrier=barrier,
            signals={rank: (step, "SIGTERM")},
            seed=seed,
            longest_pause=0.0005,
            in_background=True,
        )
        assert len(set(results)) == 1, (seed, results)
        stopped, why = results[0]
        assert stopped > step
        assert why == f"SIGTERM on rank {rank}"


def test_the_last_decision_is_published_on_close():
    store = DictStore()
    stop = AgreedStop(StubWatcher(), store=store, world_size=2, in_background=True)
    for step in range(1, 200):
        assert stop(step) is None
    stop.close()
    follower = AgreedStop(StubWatcher(), store=store, rank=1, world_size=2, in_background=True)
    with closing(follower):
        assert [follower(step) for step in range(1, 200)] == [None] * 199
    assert threading.active_count() < 10


def test_a_rank_whose_thread_receives_no_decision_is_reported():
    stop = AgreedStop(
        StubWatcher(), store=DictStore(), rank=1, world_size=2, timeout_seconds=0.05, in_background=True
    )
    with closing(stop):
        assert stop(1) is None
        with pytest.raises(
            Rank0TimeoutError, match="rank 1 has ended step 2, but rank 0 has not ended step 1"
        ):
            stop(2)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_the_store_in_the_thread_is_raised_by_a_later_call(rank):
    class LostStore(DictStore):
        def set(self, key, value, /):
            raise ConnectionError("lost")

        def check(self, keys, /):
            raise ConnectionError("lost")

    stop = AgreedStop(StubWatcher(), store=LostStore(), rank=rank, world_size=2, in_background=True)

    def run():
        for step in range(1, 1000):
            stop(step)
            time.sleep(0.001)

    with closing(stop), pytest.raises(ConnectionError, match="lost"):
        run()


def test_two_signals_in_the_same_step_give_one_reason():
    for seed in range(50):
        signals = {1: (3, "SIGTERM"), 2: (3, "SIGINT")}
        results = run_ranks(3, steps=8, barrier=True, signals=signals, seed=seed)
        assert len(set(results)) == 1, (seed, results)
        assert results[0][1] in ("SIGTERM on rank 1", "SIGINT on rank 2")


def test_round_of_several_steps():
    for seed in range(20):
        results = run_ranks(3, steps=30, barrier=True, signals={2: (7, "SIGTERM")}, seed=seed, every=5)
        assert results in ([(15, "SIGTERM on rank 2")] * 3, [(20, "SIGTERM on rank 2")] * 3)


def test_without_a_signal_no_rank_stops():
    assert run_ranks(3, steps=20, barrier=False, signals={}) == [None, None, None]


def test_signal_in_the_last_step_stops_no_rank():
    assert run_ranks(2, steps=5, barrier=True, signals={1: (5, "SIGTERM")}) == [None, None]


def test_stop_request_does_not_affect_a_new_attempt():
    store = DictStore()
    first = run_ranks(2, steps=9, barrier=True, signals={1: (2, "SIGTERM")}, store=store, attempt="0")
    assert first[0] is not None
    assert run_ranks(2, steps=9, barrier=True, signals={}, store=store, attempt="1") == [None, None]


def test_single_rank_needs_no_store_and_stops_immediately():
    watcher = StubWatcher()
    stop = AgreedStop(watcher)
    assert stop(1) is None
    watcher.received = "SIGINT"
    assert stop(2) == "SIGINT on rank 0"


@pytest.mark.parametrize(
    "arguments",
    [{"world_size": 2}, {"rank": 2, "world_size": 2, "store": DictStore()}, {"every": 0}],
)
def test_invalid_arguments_are_rejected(arguments):
    with pytest.raises(StopSetupError, match="AgreedStop"):
        AgreedStop(StubWatcher(), **arguments)


@pytest.mark.parametrize("watcher", [None, StubWatcher, lambda step: None])
def test_what_is_no_watcher_is_rejected(watcher):
    with pytest.raises(StopSetupError, match="is not a watcher"):
        AgreedStop(watcher)


@pytest.mark.parametrize("step", [4, 5, 7])
def test_steps_must_be_consecutive(step):
    stop = AgreedStop(StubWatcher())
    stop(5)
    with pytest.raises(StopOrderError, match="after step 5"):
        stop(step)


def test_step_after_the_agreed_stop_is_rejected():
    stop = AgreedStop(StubWatcher("SIGTERM"), store=DictStore(), world_size=2)
    assert [stop(1), stop(2)] == [None, "SIGTERM on rank 0"]
    with pytest.raises(StopOrderError, match="stop after step 2"):
        stop(3)


@pytest.mark.parametrize("ended_by_rank_0", [0, 1])
def test_unresponsive_rank_0_is_reported(ended_by_rank_0):
    store, now = DictStore(), [0.0]
    rank_0 = AgreedStop(StubWatcher(), store=store, world_size=2)
    for step in range(1, ended_by_rank_0 + 1):
        rank_0(step)

    def sleep(seconds):
        now[0] += seconds

    stop = AgreedStop(
        StubWatcher(), store=store, rank=1, world_size=2, timeout_seconds=5, clock=lambda: now[0], sleep=sleep
    )
    assert [stop(step + 1) for step in range(ended_by_rank_0 + 1)] == [None] * (ended_by_rank_0 + 1)
    step = ended_by_rank_0 + 2
    with pytest.raises(
        Rank0TimeoutError, match=rf"rank 1 has ended step {step}, but rank 0 has not ended step {step - 1}"
    ):
        stop(step)
    assert 5 < now[0] < 6


def test_a_step_that_is_no_whole_number_is_rejected_at_once():
    for step in ("1", 1.5, True):
        with pytest.raises(StopOrderError, match="which is not the number of a step"):
            AgreedStop(StubWatcher())(step)
