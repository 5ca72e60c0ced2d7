"""Store that outlives the ranks of a run with in-process restarts, and its outcome. Imports torch."""

import ipaddress
import socket
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from mb_resilience.restarts.arguments import Rendezvous

STORE_TIMEOUT = timedelta(minutes=5)
"""Longest wait for the connection, and for a key without a timeout of its own."""
ENDED, GONE = "ended", "gone"
"""Keys: the run ended on a rank without a fault; number of ranks that ended with a fault."""


def serve_store(meeting: Rendezvous) -> TCPStore:
    """Serve the store at its address, on the interface of the address only. It ends with the returned object.

    Raises:
        OSError: the address cannot be resolved, or the port cannot be bound.
    """
    family, *_, address = socket.getaddrinfo(meeting.host, meeting.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((interface_of(meeting.host, str(address[0])), meeting.port))
        listener.listen(1024)
        # TCPStore binds to every interface unless it is given a socket that is already listening
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


def interface_of(host: str, address: str) -> str:
    """Return the address to listen on: that of the host; "" (all) if this machine resolves its own name to loopback.

    Some distributions map the name of the machine to 127.0.1.1, which other machines cannot reach.
    """
    loopback = ipaddress.ip_address(address).is_loopback
    return "" if loopback and host not in ("localhost", address) else address
