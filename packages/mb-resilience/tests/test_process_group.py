"""Rank and store of the default process group, as arguments of a stop."""

from datetime import timedelta

import pytest

dist = pytest.importorskip("torch.distributed")
mb_host = pytest.importorskip("mb_host")

from mb_resilience import AgreedStop, process_group, rank_and_store  # noqa: E402


class Requested:
    """Watcher of one rank that receives a signal."""

    def __init__(self, signal):
        self.received = signal


def first_reason(steps):
    """Return the step and the reason of an agreed stop; the second rank receives a signal."""
    given = rank_and_store()
    watcher = Requested("SIGTERM" if given["rank"] == 1 else None)
    stop = AgreedStop(watcher, **given)
    for step in range(1, steps + 1):
        dist.barrier()  # as the collectives of a step: otherwise rank 0 may end before the signal arrives
        reason = stop(step)
        if reason:
            return step, reason
    return None


def test_a_process_without_a_group_is_alone():
    assert rank_and_store() == {"rank": 0, "world_size": 1, "store": None}


def test_ranks_of_a_group_agree():
    one, other = mb_host.run_ranks(first_reason, 2, 4)
    assert one == other
    assert one[1] == "SIGTERM on rank 1"


def test_one_rank_needs_no_store():
    (given,) = mb_host.run_ranks(rank_and_store, 1)
    assert given == {"rank": 0, "world_size": 1, "store": None}


def test_the_thread_of_hang_reports_has_a_connection_with_a_short_timeout():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mine = process_group.new_connection(dist.PrefixStore("a", dist.PrefixStore("b", server)))
    assert mine._underlying_non_prefix_store.port == server.port
    assert mine._underlying_non_prefix_store is not server
    assert (mine.timeout, server.timeout) == (
        timedelta(seconds=process_group.THREAD_TIMEOUT_SECONDS),
        timedelta(minutes=5),
    )
    other = dist.PrefixStore("a", dist.HashStore())
    assert process_group.new_connection(other) is other


@pytest.mark.parametrize("can_clone", [True, False], ids=["torch", "torch without Store.clone"])
def test_a_run_does_not_stop_for_the_signal_of_the_previous_one_at_the_same_server(monkeypatch, can_clone):
    if not can_clone:
        monkeypatch.delattr(dist.Store, "clone")
        monkeypatch.delattr(dist.PrefixStore, "clone", raising=False)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    reasons = []
    for run, signal in ((1, "SIGTERM"), (2, None)):
        store = dist.PrefixStore(f"run {run}", server)
        stops = [
            AgreedStop(Requested(signal), store=process_group.new_connection(store), rank=rank, world_size=2)
            for rank in range(2)
        ]
        reasons.append([stop(step) for step in (1, 2) for stop in stops])
    assert reasons == [[None, None, "SIGTERM on rank 0", "SIGTERM on rank 0"], [None] * 4]


def connection_of_a_thread():
    """Return whether the store of a thread is another connection than that of the process group."""
    return rank_and_store(of_thread=True)["store"] is not rank_and_store()["store"]


def test_a_thread_has_a_connection_of_its_kind():
    assert len(mb_host.run_ranks(connection_of_a_thread, 2)) == 2
