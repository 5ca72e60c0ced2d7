"""The port that a user asked for, if it can be had."""

import socket
from collections.abc import Mapping


class PortError(OSError):
    """The port that was asked for cannot be used."""


def asked_port(environment: Mapping[str, str]) -> int | None:
    """Return MASTER_PORT if it is set and free; None if it is not set, so that any free port will do.

    Raises:
        PortError: it is no port, or in use.
    """
    text = environment.get("MASTER_PORT")
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise PortError(f"MASTER_PORT: must be a number from 1 to 65535, is {text!r}. Correct or unset it.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(text)))
        except OSError as error:
            raise PortError(
                f"MASTER_PORT: port {text} is in use ({error.strerror}). Choose another, or unset MASTER_PORT "
                "to take any free one."
            ) from error
    return int(text)
