"""The port that MASTER_PORT requests, checked before processes start. The standard library only."""

import socket
from collections.abc import Mapping

from mb_launch.errors import LauncherError


class PortError(LauncherError, OSError):
    """The requested port cannot be used."""


def requested_port(environment: Mapping[str, str]) -> int | None:
    """Return MASTER_PORT if it is set and free; None if it is not set, so that any free port may be taken.

    Raises:
        PortError: The value is not a port number, or the port is in use.
    """
    text = environment.get("MASTER_PORT")
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise PortError(f"MASTER_PORT: must be a number from 1 to 65535, is {text!r}. Correct or unset it.")
    with socket.socket() as probe:
        # As torch's store binds it: a port whose last connection is in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(text)))
        except OSError as error:
            raise PortError(
                f"MASTER_PORT: port {text} is in use ({error.strerror}). Choose another, or unset MASTER_PORT "
                "to take any free one."
            ) from error
    return int(text)
