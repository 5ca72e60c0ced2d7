"""Environment variables of the processes of one machine: threads, network interface, port. Standard library only."""

import os
import socket
from collections.abc import Callable, Mapping, MutableMapping

from mb_launch.errors import LauncherError

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that name the network interface on which the collectives of a process listen."""


def set_omp_threads(environment: MutableMapping[str, str], *, processes: int) -> None:
    """Divide the CPU cores by the number of processes as OMP_NUM_THREADS, unless it is set.

    OpenMP reads the variable once, when torch is imported: call this function before.
    """
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))


def set_unset_variables(
    wanted: Mapping[str, str | int | float | bool],
    *,
    log: Callable[[str], object],
    environment: MutableMapping[str, str] | None = None,
) -> None:
    """Set the environment variables that the shell has not set; log the shell's values that take precedence.

    Args:
        wanted: Names and values.
        log: Receives one line per variable that the shell has set to another value.
        environment: Variables to change; None: `os.environ`.
    """
    environment = os.environ if environment is None else environment
    for name, value in wanted.items():
        if environment.setdefault(name, str(value)) != str(value):
            log(
                f"env_vars.{name}: the shell's value {environment[name]!r} takes precedence over {str(value)!r}"
            )


def keep_collectives_local(environment: MutableMapping[str, str]) -> None:
    """Make gloo and NCCL listen on the loopback interface, unless the user has named another one.

    Without these variables gloo listens on the interface that the host name resolves to, and NCCL on the first one
    other than loopback.
    """
    name = loopback_interface()
    if name is not None:
        for variable in INTERFACE_VARIABLES:
            environment.setdefault(variable, name)


def loopback_interface() -> str | None:
    """Return the name of the loopback interface: `lo` on Linux, `lo0` on macOS; None if there is none."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), None)


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
