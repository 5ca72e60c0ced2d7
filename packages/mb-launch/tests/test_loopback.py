"""The store of a local launcher is reachable from its machine only, and workers can use it."""

import socket
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
psutil = pytest.importorskip("psutil")

from torch.distributed import TCPStore  # noqa: E402

from mb_launch.ranks.loopback import (  # noqa: E402
    BACKEND,
    LoopbackRendezvous,
    new_run_id,
    register_backend,
)


@pytest.fixture
def rendezvous():
    return LoopbackRendezvous(port=0, run_id="run")


def test_the_store_listens_on_the_loopback_interface_alone(rendezvous):
    port = rendezvous.next_rendezvous().bootstrap_store_info.master_port
    process = psutil.Process()
    # psutil 6 renamed the method
    connections = process.net_connections if hasattr(process, "net_connections") else process.connections
    listening = [each.laddr.ip for each in connections("inet") if each.laddr.port == port]
    assert set(listening) == {"127.0.0.1"}


def test_a_worker_reads_what_the_agent_wrote(rendezvous):
    info = rendezvous.next_rendezvous()
    info.store.set("key", "value")
    where = info.bootstrap_store_info
    worker = TCPStore(where.master_addr, where.master_port, is_master=False, timeout=timedelta(seconds=30))
    assert (info.rank, info.world_size, worker.get("run/key")) == (0, 1, b"value")


def test_there_is_exactly_one_agent(rendezvous):
    rendezvous.set_closed()
    assert rendezvous.use_agent_store
    assert (rendezvous.is_closed(), rendezvous.num_nodes_waiting(), rendezvous.shutdown()) == (False, 0, True)
    assert (rendezvous.get_run_id(), rendezvous.get_backend()) == ("run", BACKEND)


def test_a_port_in_use_is_an_error():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            LoopbackRendezvous(port=other.getsockname()[1], run_id="run")


def test_the_backend_may_be_registered_twice():
    assert register_backend() == register_backend() == BACKEND


def test_identifiers_differ():
    assert new_run_id() != new_run_id()
