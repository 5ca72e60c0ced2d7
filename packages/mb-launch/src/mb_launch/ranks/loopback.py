"""Rendezvous of the processes of one machine, on the loopback interface only. Imports torch.

The rendezvous backends of torch elastic start a store that listens on every interface, and the `c10d` backend unpickles
the state that it finds in that store. Here the store is served on 127.0.0.1, and the rendezvous has no state, because
there is exactly one agent.
"""

import secrets
import socket

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from mb_schema.listening import listen_on

BACKEND = "mb-loopback"
"""Name of the backend for `LaunchConfig.rdzv_backend`; `register_backend` makes it known to torch elastic."""

LOOPBACK = "127.0.0.1"


class LoopbackRendezvous(RendezvousHandler):
    """Rendezvous of a single agent, with a store that only processes of this machine can reach.

    Workers use the store of the agent (`use_agent_store`) and open no second one.

    Args:
        port: Port of the store; 0 takes a free one.
        run_id: Prefix of the agent's keys in the store.

    Raises:
        OSError: The port cannot be bound.
    """

    def __init__(self, *, port: int, run_id: str) -> None:
        self._run_id = run_id
        with listen_on(LOOPBACK, port, family=socket.AF_INET) as listener:
            self._port = int(listener.getsockname()[1])
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
        """True: workers connect to this store instead of serving another."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return this agent as the only one, with its store and the address of the store."""
        store = PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, self._port))

    def is_closed(self) -> bool:
        """False: there is no other agent that could close it."""
        return False

    def set_closed(self) -> None:
        """Do nothing: no other agent can join."""

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
    """Return a random identifier, which appears in no folder name and no process list."""
    return secrets.token_hex(16)


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    port = parameters.endpoint.rpartition(":")[2]
    return LoopbackRendezvous(port=int(port), run_id=parameters.run_id)
