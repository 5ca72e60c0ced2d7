"""Connections to the store of a process group. Imports torch."""

from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

STORE_TIMEOUT_SECONDS = 10.0
"""Timeout of the hang-reporting thread for store operations: the process that serves the store may hang."""


def default_store(*, of_thread: bool = False) -> Store:
    """Return the store of the default process group, or a new connection to it for use by one thread."""
    store = _get_default_store()
    return new_connection(store) if of_thread else store


def new_connection(store: Store, *, timeout_seconds: float = STORE_TIMEOUT_SECONDS) -> Store:
    """Return a new connection to the same store server, for use by one thread; other kinds of stores unchanged."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return store
    return TCPStore(store.host, store.port, None, False, timedelta(seconds=timeout_seconds))
