"""This process among the ranks of a run: rank, world size, and connections to the store that the ranks share.

Imports torch only in a process that has imported it: a run of one rank needs neither torch nor a store.
"""

import sys
from datetime import timedelta
from typing import Any, Protocol, TypedDict, TypeVar, cast
from uuid import uuid4

from mb_resilience.stops.decision_exchange import KeyValueStore

StoreKind = TypeVar("StoreKind", bound=KeyValueStore)
THREAD_TIMEOUT_SECONDS = 10.0
"""Timeout of the hang-reporting thread for store operations: the process that serves the store may hang."""


class RankInfo(Protocol):
    """Position of this process in the run, such as `mb_launch.World`."""

    @property
    def rank(self) -> int:
        """Rank of this process."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def attempt(self) -> str:
        """Name of this start of the run, identical on all ranks and different after each restart."""

    @property
    def is_logging_rank(self) -> bool:
        """Whether this rank logs what is identical on all ranks."""


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
    store: KeyValueStore | None = None
    if dist.get_world_size() > 1:
        from torch.distributed.distributed_c10d import _get_default_store  # noqa: PLC0415 (torch is imported already)

        store = new_connection(_get_default_store()) if of_thread else _get_default_store()
    return {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "store": store}


def new_connection(store: StoreKind, *, timeout_seconds: float = THREAD_TIMEOUT_SECONDS) -> StoreKind:
    """Return a new connection to the server of a TCPStore, for use by one thread; other kinds of stores unchanged.

    Process groups that follow one another at one server do not read each other's keys: it has the prefix of the store,
    or in versions of torch that cannot copy one, another prefix of this group, so that only such connections read what
    they wrote. A connection of torch holds a lock while it waits, so that a thread that shares one with the main thread
    would wait as long as the main thread does.
    """
    if "torch.distributed" not in sys.modules:  # then no store is one of torch
        return store
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415 (as above)

    server: Any = store
    while isinstance(server, PrefixStore):
        server = server.underlying_store
    if not isinstance(server, TCPStore):
        return store
    timeout = timedelta(seconds=timeout_seconds)
    connection: Any = store
    # Older versions of torch cannot clone a store, and do not return its prefix either.
    if not hasattr(connection, "clone"):
        prefix = connection.compare_set("mb_resilience/connections", "", uuid4().hex).decode()
        return cast(
            "StoreKind", PrefixStore(prefix, TCPStore(server.host, server.port, None, False, timeout))
        )
    connection = connection.clone()
    connection.set_timeout(timeout)
    return cast("StoreKind", connection)
