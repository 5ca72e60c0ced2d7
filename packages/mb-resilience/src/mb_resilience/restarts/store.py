"""Store that outlives the ranks of a run with in-process restarts, and its outcome. Imports torch."""

from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from mb_resilience.restarts.arguments import Rendezvous
from mb_schema.listening import interface_of, listen_on

STORE_TIMEOUT = timedelta(minutes=5)
"""Longest wait for the connection, and for a key without a timeout of its own."""
ENDED, GONE = "ended", "gone"
"""Keys: the run ended on a rank without a fault; number of ranks that ended with a fault."""


def serve_store(meeting: Rendezvous) -> TCPStore:
    """Serve the store at its address, on the interface of the address only. It ends with the returned object.

    Raises:
        OSError: the address cannot be resolved, or the port cannot be bound.
    """
    interface = interface_of(meeting.host, meeting.port)
    # TCPStore binds to every interface unless it is given a socket that is already listening
    with listen_on(interface.address, meeting.port, family=interface.family) as listener:
        return TCPStore(
            meeting.host,
            int(listener.getsockname()[1]),
            is_master=True,
            wait_for_workers=False,
            timeout=STORE_TIMEOUT,
            master_listen_fd=listener.detach(),
        )


def connect(meeting: Rendezvous) -> PrefixStore:
    """Return a new connection to the store, with the prefix of this start."""
    store = TCPStore(
        meeting.host, meeting.port, is_master=False, wait_for_workers=False, timeout=STORE_TIMEOUT
    )
    return PrefixStore(meeting.prefix, store)
