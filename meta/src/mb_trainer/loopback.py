"""Rendezvous of the processes of one machine that listens on the loopback interface alone.

torch elastic's own backends start a store that listens on every interface, and the `c10d` backend unpickles the state
that it finds in that store. Here the store is served on 127.0.0.1 and the rendezvous has no state: the one agent knows
that it is alone.
"""

import secrets
import socket
from collections.abc import MutableMapping

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

BACKEND = "mb-loopback"
"""Name of the backend for `LaunchConfig.rdzv_backend`, once `register_backend` has been called."""

LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables that name the interface on which the collectives of a process listen."""


class LoopbackRendezvous(RendezvousHandler):
    """Rendezvous of one agent, with a store that only processes of this machine can reach.

    The workers use the store of the agent (`use_agent_store`) and open none of their own.

    Args:
        port: to serve the store on; 0 takes a free one.
        run_id: prefix of the agent's keys in the store.

    Raises:
        OSError: the port cannot be bound.
    """

    def __init__(self, *, port: int, run_id: str) -> None:
        self._run_id = run_id
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((LOOPBACK, port))
            listener.listen(1024)
            self._port = int(listener.getsockname()[1])
            # TCPStore binds to every interface, unless it is given a socket that listens already.
            self._store = TCPStore(
                LOOPBACK,
                self._port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """True: workers connect to this store instead of serving one."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return this agent as the only one, with its store and the address of the store."""
        store = PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, self._port))

    def is_closed(self) -> bool:
        """False: there is no other agent that could close it."""
        return False

    def set_closed(self) -> None:
        """Do nothing, since no other agent can join."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no other agent can wait."""
        return 0

    def get_run_id(self) -> str:
        """Return the prefix of the agent's keys."""
        return self._run_id

    def shutdown(self) -> bool:
        """Return True; the store ends with this object."""
        return True


def register_backend() -> str:
    """Register the backend with torch elastic and return its name. May be called again."""
    rendezvous_handler_registry.register(BACKEND, _create)
    return BACKEND


def new_run_id() -> str:
    """Return a random identifier, which no folder or process list shows."""
    return secrets.token_hex(16)


def keep_collectives_local(environment: MutableMapping[str, str]) -> None:
    """Make gloo and NCCL listen on the loopback interface, where the user named no other.

    Without the variables gloo listens on the interface that the host name resolves to, and NCCL on the first one that
    is not the loopback.
    """
    name = loopback_interface()
    if name is not None:
        for variable in INTERFACE_VARIABLES:
            environment.setdefault(variable, name)


def loopback_interface() -> str | None:
    """Return the name of the loopback interface, `lo` on Linux and `lo0` on macOS; None where there is none."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), None)


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    port = parameters.endpoint.rpartition(":")[2]
    return LoopbackRendezvous(port=int(port), run_id=parameters.run_id)
