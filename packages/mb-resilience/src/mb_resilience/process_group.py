"""Rank, world size and store of torch's default process group. Imports torch."""

from datetime import timedelta
from typing import TypedDict

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

STORE_TIMEOUT_SECONDS = 10.0
"""Timeout of the hang-reporting thread for store operations: the process that serves the store may hang."""


class RankAndStore(TypedDict):
    """Arguments of `AgreedStop` and `HangReporter`."""

    rank: int
    world_size: int
    store: Store | None


def rank_and_store(*, of_thread: bool = False) -> RankAndStore:
    """Return rank, world size and store of the default process group: `AgreedStop(watcher, **rank_and_store())`.

    A process without a process group is rank 0 of 1. The store is the one by which the ranks found each other; None for
    a single rank, which needs no store.

    Args:
        of_thread: if True, the store is a new connection, for a thread that uses it while the main thread may wait in
            the store: `HangReporter(seconds=300, **rank_and_store(of_thread=True))`.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return {"rank": 0, "world_size": 1, "store": None}
    size = dist.get_world_size()
    store = _get_default_store() if size > 1 else None
    if store is not None and of_thread:
        store = new_connection(store)
    return {"rank": dist.get_rank(), "world_size": size, "store": store}


def new_connection(store: Store) -> Store:
    """Return a new connection to the same store server, for use by one thread; other kinds of stores unchanged."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return store
    return TCPStore(store.host, store.port, None, False, timedelta(seconds=STORE_TIMEOUT_SECONDS))
