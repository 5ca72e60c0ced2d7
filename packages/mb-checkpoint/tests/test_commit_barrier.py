"""All ranks act on an outcome at the same poll, however far they drift apart."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_checkpoint.save.commit_barrier import CommitBarrier, RankZeroTimeoutError


class Store(dict):
    """Store in memory, with the interface of torch's."""

    def set(self, key, value):
        self[key] = value.encode()

    def get(self, key):
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)

    def delete_key(self, key):
        return self.pop(key, None) is not None


def polls_until_outcome(rounds, rank, pauses, outcome):
    """Poll with pauses; report at the second poll; return the number of the poll at which this rank acted."""
    deadline, number = time.monotonic() + 15, 0
    while time.monotonic() < deadline:
        number += 1
        time.sleep(pauses[number % len(pauses)] / 5000)
        if number == 2:
            rounds.report("")
        known = outcome if rank == 0 and rounds.reports() is not None else None
        if known is not None or rank != 0 or not hasattr(rounds, "known"):
            rounds.known = known or getattr(rounds, "known", None)
        if rounds.decide(rounds.known if rank == 0 else None) == outcome:
            return number
    raise AssertionError("no outcome")


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=3, max_size=3))
def test_drifting_ranks_act_at_the_same_poll(pauses):
    store, acted = Store(), {}

    def run(rank):
        rounds = CommitBarrier(store, rank=rank, world_size=3, name="x")
        acted[rank] = polls_until_outcome(rounds, rank, pauses[rank], "done")

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(acted) == 3
    assert len(set(acted.values())) == 1


def test_one_rank_needs_no_store():
    rounds = CommitBarrier(None, rank=0, world_size=1, name="x")
    assert (rounds.reports(), rounds.decide(None)) == (None, None)
    rounds.report("disk full")
    assert (rounds.reports(), rounds.decide("failed")) == (["disk full"], "failed")


def test_reports_come_by_rank_and_leave_nothing_in_the_store():
    store = Store()
    ranks = [CommitBarrier(store, rank=rank, world_size=2, name="x") for rank in range(2)]
    ranks[1].report("bad disk")
    assert ranks[0].reports() is None
    ranks[0].report("")
    assert (ranks[0].reports(), dict(store)) == (["", "bad disk"], {})


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
