"""Sockets that listen on the interface of one address only, for stores without a password. Standard library only."""

import ipaddress
import socket
from typing import NamedTuple


class Interface(NamedTuple):
    """Interface of a host on which a socket listens."""

    family: int
    resolved: str
    """Address of the host."""
    address: str
    """Address to listen on: that of the host, or "" for every interface."""


def interface_of(host: str, port: int) -> Interface:
    """Return the interface of a host; every interface if this machine resolves its own name to a loopback address.

    Some distributions map the name of the machine to 127.0.1.1, which other machines cannot reach.

    Raises:
        OSError: The host cannot be resolved.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    resolved = str(address[0])
    is_named = ipaddress.ip_address(resolved).is_loopback and host not in ("localhost", resolved)
    return Interface(family, resolved, "" if is_named else resolved)


def listen_on(address: str, port: int, *, family: int) -> socket.socket:
    """Return a socket that listens on an address only, for a TCPStore, which would listen on every interface.

    Raises:
        OSError: The port cannot be bound.
    """
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
