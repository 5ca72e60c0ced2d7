"""Rank, world size and store of torch's default process group. Imports torch only if the process has done so."""

import sys
from importlib import import_module
from typing import Any, TypedDict


class RankAndStore(TypedDict):
    """Arguments of `AgreedStop` and `HangReporter`."""

    rank: int
    world_size: int
    store: Any


def rank_and_store(*, of_thread: bool = False) -> RankAndStore:
    """Return rank, world size and store of the default process group: `AgreedStop(watcher, **rank_and_store())`.

    A process without a process group is rank 0 of 1. The store is the one by which the ranks found each other; None for
    a single rank, which needs no store.

    Args:
        of_thread: if True, the store is a new connection, for a thread that uses it while the main thread may wait in
            the store: `HangReporter(seconds=300, **rank_and_store(of_thread=True))`.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not (dist.is_available() and dist.is_initialized()):
        return {"rank": 0, "world_size": 1, "store": None}
    store = None
    if dist.get_world_size() > 1:
        store = import_module("mb_resilience.store_connection").default_store(of_thread=of_thread)
    return {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "store": store}
