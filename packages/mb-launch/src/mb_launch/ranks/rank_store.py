"""Store in which the ranks of a run find each other where no launcher serves one, as under srun. Imports torch.

torch's own rendezvous lets rank 0 listen on every interface, and its store has no password: every client that reaches
it can read and write every key. Here rank 0 listens on the address of the rendezvous only.
"""

import logging
import resource
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from functools import cache

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.constants import default_pg_timeout

from mb_launch.world import World, WorldError
from mb_schema.listening import interface_of, listen_on

CONNECTIONS_PER_RANK = 4
"""Connections of a rank to the store: its process groups, and threads that use the store while a group may wait."""
RESERVED_FILES = 512
"""Files that the process of the store opens otherwise: libraries, data, checkpoints, logs."""
_AGENT = "TORCHELASTIC_USE_AGENT_STORE"

_groups: Counter[tuple[str, str]] = Counter()
"""Process groups that this process has opened at each address; equal on all ranks, because each is collective."""


def rank_store(world: World, environment: Mapping[str, str], *, timeout: timedelta | None = None) -> Store:
    """Return the store of a process group, served by rank 0 on the interface of its address. Collective over the world.

    The store of torchrun or `launch_local` is used if they serve one. A process keeps one connection to each store, and
    rank 0 serves it until the process ends, because a further process group finds its ranks at the same address. Each
    process group has a prefix: torch numbers groups from 0 again after `destroy_process_group`, so that without one the
    ranks would read the addresses of a group that has ended. torchrun keeps its store in restarts, too. If this machine
    resolves its own name to a loopback address, as some distributions set it up, other machines could not reach that
    one, and rank 0 listens on every interface, with a warning.

    Args:
        world: Rank, world size and rendezvous address.
        environment: Variables; MASTER_ADDR and MASTER_PORT are read if the world has no address.
        timeout: Of operations of the store; None: torch's default.

    Raises:
        WorldError: The address cannot be resolved, or rank 0 cannot listen on it.
    """
    host, _, port = (
        world.address or f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    ).rpartition(":")
    if not port.isdecimal():
        raise WorldError(
            f"MASTER_PORT: must be a number, is {port!r}. Set it to a free port of the node of rank 0."
        )
    has_server = environment.get(_AGENT) == "True"
    serves = world.rank == 0 and not has_server
    if world.rank == 0:
        _allow_connections(world.world_size, serves=serves)
    store = _connection(host, int(port), world_size=world.world_size, serves=serves)
    store.set_timeout(timeout or default_pg_timeout)
    _groups[host, port] += 1
    return PrefixStore(f"mb_launch/{world.attempt}/{_groups[host, port]}", store)


def _allow_connections(world_size: int, *, serves: bool) -> None:
    """Raise the soft limit of open files of this process to one that the server needs, or warn that it is too low.

    Without a free file the server accepts no connection: the ranks that connect next fail after their timeout, with
    "Connection reset by peer", and the process of the server prints nothing.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS_PER_RANK * world_size + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    possible = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if serves:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if not serves or possible < needed:
        has, owner = (possible, "this process") if serves else (soft, "the launcher, which serves the store,")
        logging.getLogger(__name__).warning(
            "ulimit -n: %s may open %d files, and the store of %d ranks needs up to %d, because each rank has several "
            "connections to it. Later connections would be reset. Raise the limit before the job starts%s.",
            owner,
            has,
            world_size,
            needed,
            " (its hard limit)" if serves else "",
        )


@cache
def _connection(host: str, port: int, *, world_size: int, serves: bool) -> TCPStore:
    """Return the connection of this process to a store, for its lifetime; if it `serves`, it is the server, too."""
    return TCPStore(
        host,
        port,
        world_size=world_size,
        is_master=serves,
        timeout=default_pg_timeout,
        master_listen_fd=_listen(host, port) if serves else None,
    )


def _listen(host: str, port: int) -> int:
    """Return the descriptor of a socket that listens on the interface of a host, or on all, with a warning."""
    try:
        interface = interface_of(host, port)
        listener = listen_on(interface.address, port, family=interface.family)
    except OSError as error:
        raise WorldError(
            f"MASTER_ADDR: rank 0 cannot listen on {host}:{port} ({error.strerror}). Set MASTER_ADDR to an address of "
            "the node of rank 0, and MASTER_PORT to a free port there."
        ) from error
    if not interface.address:
        logging.getLogger(__name__).warning(
            "MASTER_ADDR: this machine resolves its name %s to %s, which other machines cannot reach, so that the "
            "store of the run listens on every interface. Set MASTER_ADDR to the machine's address.",
            host,
            interface.resolved,
        )
    return listener.detach()
