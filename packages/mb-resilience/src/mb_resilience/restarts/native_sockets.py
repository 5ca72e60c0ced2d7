"""Connections of native code, such as gloo's, to abort collectives that wait for a rank without progress. No torch.

`ProcessGroupGloo.abort` and `shutdown` do nothing (torch 2.11): a rank that waits in a collective of gloo returns when
its partner closes the connection, or when the collective times out. Shutting the sockets down makes it return at once.
The sockets belong to C++, which has no function that returns them: they are found among the open files of the process.
"""

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress


def open_sockets() -> dict[int, int]:
    """Return the sockets of this process: number of the socket (unique while it is open) -> file descriptor."""
    descriptors = {}
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 (names are numbers)
        with suppress(OSError):  # closed by another thread, such as the descriptor of this listing
            status = os.fstat(int(name))
            if is_socket(status.st_mode):
                descriptors[status.st_ino] = int(name)
    return descriptors


def is_socket(mode: int) -> bool:
    """Return whether a file mode is that of a socket."""
    return (mode & 0o170000) == 0o140000


def python_sockets() -> set[int]:
    """Return the file descriptors of the sockets that Python objects own."""
    # isinstance would read `__class__`, which raises for some proxies
    return {each.fileno() for each in gc.get_objects() if issubclass(type(each), socket.socket)}


def native_connections(*, opened_before: dict[int, int]) -> Iterator[socket.socket]:
    """Yield a duplicate of each TCP connection that native code opened later, closed after the iteration step."""
    owned_by_python = python_sockets()
    for number, descriptor in open_sockets().items():
        if number in opened_before or descriptor in owned_by_python:
            continue
        with suppress(OSError), closing(socket.socket(fileno=os.dup(descriptor))) as connection:
            if (
                connection.family in (socket.AF_INET, socket.AF_INET6)
                and connection.type == socket.SOCK_STREAM
            ):
                connection.getpeername()  # raises for a socket that listens
                yield connection


def shut_down_connections(*, opened_before: dict[int, int]) -> int:
    """Shut down the TCP connections that native code opened after a moment, and return their number.

    Closes those of gloo and of torch's stores, in this process and in those that inherited them: operations that wait
    for them raise. Sockets that Python objects own remain open.

    Args:
        opened_before: result of `open_sockets` at that moment.
    """
    number = 0
    for connection in native_connections(opened_before=opened_before):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
            number += 1
    return number
