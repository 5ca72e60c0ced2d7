"""All ranks act on an outcome at the same poll, however far they drift apart."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_checkpoint.save.commit_barrier import CommitBarrier, RankZeroTimeoutError, next_round


class Store(dict):
    """Store in memory, with the interface of torch's."""

    def set(self, key, value):
        self[key] = value.encode()

    def get(self, key, *missing):
        return super().get(key, *missing)

    def check(self, keys):
        return all(key in self for key in keys)

    def add(self, key, amount):
        self[key] = b"%d" % (int(self.get(key, b"0")) + amount)
        return int(self[key])

    def delete_key(self, key):
        return self.pop(key, None) is not None


def polls_until_outcome(rounds, rank, pauses, outcome, reported_at):
    """Poll with pauses; report at one of the polls; return the number of the poll at which this rank acted."""
    deadline, number = time.monotonic() + 15, 0
    while time.monotonic() < deadline:
        number += 1
        time.sleep(pauses[number % len(pauses)] / 5000)
        if number == reported_at:
            rounds.report("")
        known = outcome if rank == 0 and rounds.failures() is not None else None
        if known is not None or rank != 0 or not hasattr(rounds, "known"):
            rounds.known = known or getattr(rounds, "known", None)
        if rounds.decide(rounds.known if rank == 0 else None) == outcome:
            return number
    raise AssertionError("no outcome")


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=3, max_size=3),
    st.integers(1, 30),
)
def test_drifting_ranks_act_at_the_same_poll(pauses, reported_at):
    store, acted = Store(), {}

    def run(rank):
        rounds = CommitBarrier(store, rank=rank, world_size=3, name="x")
        acted[rank] = polls_until_outcome(rounds, rank, pauses[rank], "done", reported_at)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(acted) == 3
    assert len(set(acted.values())) == 1


def test_a_poll_that_blocks_acts_on_a_decision_for_a_later_round():
    store = Store()
    zero, one = (CommitBarrier(store, rank=rank, world_size=2, name="x") for rank in range(2))
    for _ in range(9):  # the rounds after the eighth poll are the tenth and the twelfth
        assert (zero.decide(None), one.decide(None)) == (None, None)
    assert (zero.decide("done"), one.decide(None)) == (None, None)
    assert (one.decide_now(None), zero.decide_now(None), one.decide_now(None)) == ("done", "done", "done")


def test_a_poll_that_blocks_returns_what_rank_0_decides_within_it():
    store = Store()
    zero, one = (CommitBarrier(store, rank=rank, world_size=2, name="x") for rank in range(2))
    assert (one.decide_now(None), zero.decide_now(None), one.decide_now(None)) == (None, None, None)
    assert (zero.decide_now("done"), one.decide_now(None)) == ("done", "done")
    alone = CommitBarrier(None, rank=0, world_size=1, name="x")
    assert (alone.decide_now(None), alone.decide_now("done")) == (None, "done")


@pytest.mark.parametrize("known_at", range(1, 30))
def test_an_outcome_that_is_known_between_two_rounds_is_kept(known_at):
    store = Store()
    zero, one = (CommitBarrier(store, rank=rank, world_size=2, name="x") for rank in range(2))
    acted = [
        poll
        for poll in range(1, 60)
        if [zero.decide("done" if poll == known_at else None), one.decide(None)] == ["done"] * 2
    ]
    fixed = next(each for each in ROUNDS if each >= known_at)
    assert acted[0] == next_round(fixed)
    blocking = [CommitBarrier(store, rank=rank, world_size=2, name="y") for rank in range(2)]
    for poll in range(1, known_at + 1):
        zero_acts, one_acts = (
            rank.decide("done" if rank is blocking[0] and poll == known_at else None) for rank in blocking
        )
        assert (zero_acts, one_acts) == (None, None)
    assert [rank.decide_now(None) for rank in blocking] == ["done"] * 2


ROUNDS = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 41, 51, 63]


def test_rounds_grow_by_a_quarter_at_most():
    rounds = [1]
    while rounds[-1] < 60:
        rounds.append(next_round(rounds[-1]))
    assert rounds == ROUNDS


def test_one_rank_needs_no_store():
    rounds = CommitBarrier(None, rank=0, world_size=1, name="x")
    assert (rounds.failures(), rounds.decide(None)) == (None, None)
    rounds.report("disk full")
    assert (rounds.failures(), rounds.decide("failed")) == (["rank 0: disk full"], "failed")
    rounds = CommitBarrier(None, rank=0, world_size=1, name="x")
    rounds.report("")
    assert rounds.failures() == []


def test_failures_come_by_rank_once_and_leave_nothing_in_the_store():
    store = Store()
    ranks = [CommitBarrier(store, rank=rank, world_size=3, name="x") for rank in range(3)]
    ranks[2].report("bad disk")
    ranks[1].report("full")
    assert ranks[0].failures() is None
    ranks[0].report("")
    assert (ranks[0].failures(), dict(store)) == (["rank 1: full", "rank 2: bad disk"], {})
    assert (ranks[0].failures(), dict(store)) == (None, {})


def test_of_many_failures_some_are_read():
    store = Store()
    ranks = [CommitBarrier(store, rank=rank, world_size=40, name="x") for rank in range(40)]
    for rank in ranks:
        rank.report("full")
    assert ranks[0].failures() == [*(f"rank {rank}: full" for rank in range(16)), "and 24 other ranks"]


def test_a_rank_0_that_stops_within_a_poll_that_blocks_is_named():
    seconds, store = iter(range(0, 1000, 10)), Store()
    zero = CommitBarrier(store, rank=0, world_size=4, name="x")
    one = CommitBarrier(
        store, rank=3, world_size=4, name="x", timeout_seconds=60, clock=lambda: next(seconds)
    )
    for _ in range(50):  # it waits as long as rank 0 polls
        assert (zero.decide_now(None), one.decide_now(None)) == (None, None)
    waits = "rank 3 waits for the end of a save, and rank 0 has not polled within 60 s"
    with pytest.raises(RankZeroTimeoutError, match=waits):
        all(one.decide_now(None) is None for _ in range(50))


def test_an_unresponsive_rank_0_is_named():
    seconds = iter(range(0, 1000, 10))
    rounds = CommitBarrier(
        Store(),
        rank=3,
        world_size=4,
        name="x",
        timeout_seconds=60,
        clock=lambda: next(seconds),
        sleep=lambda _: None,
    )
    assert rounds.decide(None) is None
    with pytest.raises(RankZeroTimeoutError, match="rank 3 is at poll 2, and rank 0 has not reached poll 1"):
        rounds.decide(None)
