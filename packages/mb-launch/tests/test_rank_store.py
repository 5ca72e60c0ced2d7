"""The store that rank 0 serves listens on the address of the rendezvous alone."""

import os
import resource
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.distributed import TCPStore  # noqa: E402

from mb_launch import World, WorldError  # noqa: E402
from mb_launch.ranks.rank_store import _allow_connections, _listen, rank_store  # noqa: E402

RANK = """
import os, socket, torch
from mb_launch import default_process_group, default_store, read_world
world = read_world(os.environ)
with default_process_group(world, device=torch.device("cpu")):
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    default_store(world).set(f"rank{world.rank}", "here")
    if world.rank == 0:
        port = int(world.address.rpartition(":")[2])
        for address in (world.address.rpartition(":")[0], "127.0.0.3", *OTHERS):
            try:
                socket.create_connection((address, port), timeout=5).close()
                print(address, "open")
            except ConnectionRefusedError:
                print(address, "refused")
    torch.distributed.barrier()
print("sum", int(total))
"""


def own_addresses() -> list[str]:
    """Return the addresses of this machine other than loopback."""
    return sorted(
        {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
        - {"127.0.0.1"}
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_a_client_at_another_address_of_the_machine_is_refused():
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node", "SLURM_NTASKS": "2"}
    step |= {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    others = own_addresses()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK.replace("OTHERS", repr(others))],
            env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=120)[0].split("\n")[:-1] for rank in ranks]
    refused = [f"{address} refused" for address in ("127.0.0.3", *others)]
    assert printed == [["127.0.0.2 open", *refused, "sum 2"], ["sum 2"]]


def test_each_restart_of_torchrun_has_its_own_keys_in_its_store():
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launcher = {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(server.port),
    }
    first, second = (rank_store(World(world_size=2, attempt=attempt), launcher) for attempt in ("0", "1"))
    first.set("address", "of an ended rank")
    assert server.get("mb_launch/0/1/address") == b"of an ended rank"
    assert not second.check(["address"])


GROUPS_AGAIN = """
import os, torch, torch.distributed as dist
from mb_launch import default_process_group, read_world
world = read_world(os.environ)
for attempt in range(5):
    with default_process_group(world, device=torch.device("cpu")):
        groups = [dist.new_group([0, 1]) for _ in range(8)]
        totals = [torch.full((1,), world.rank + attempt) for _ in groups]
        for total, group in zip(totals, groups):
            dist.all_reduce(total, group=group)
        assert {int(total) for total in totals} == {1 + 2 * attempt}
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_a_process_opens_further_groups_one_after_the_other(tmp_path, launcher):
    """Without a prefix for each, a rank reads the addresses of a group that has ended, and waits for it."""
    (tmp_path / "program.py").write_text(GROUPS_AGAIN)
    command = [sys.executable, str(tmp_path / "program.py")]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    if launcher == "torchrun":
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command[1:1] = torchrun
        ranks = [environment]
    else:
        address = {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        ranks = [environment | address | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    started = [subprocess.Popen(command, env=each) for each in ranks]
    try:
        assert [process.wait(timeout=120) for process in started] == [0] * len(started)
    finally:
        for process in started:
            process.kill()


def test_an_address_of_another_machine_and_a_bad_port_are_named():
    with pytest.raises(WorldError, match=r"rank 0 cannot listen on 192\.0\.2\.1:4000"):
        rank_store(World(world_size=2, address="192.0.2.1:4000"), {})
    with pytest.raises(WorldError, match="MASTER_PORT: must be a number, is 'x'"):
        rank_store(World(world_size=2), {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"})


def test_a_name_that_is_loopback_here_listens_everywhere_with_a_warning(monkeypatch, caplog):
    port = free_port()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.1.1", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: found)
    listener = socket.socket(fileno=_listen("node", port))
    assert listener.getsockname() == ("0.0.0.0", port)
    listener.close()
    assert "resolves its name node to 127.0.1.1" in caplog.text


def limits(monkeypatch, soft, hard):
    """Replace the limits of open files of this process, and return the changes of them."""
    changes = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, values: changes.append(values))
    return changes


def test_the_limit_of_open_files_is_raised_for_the_connections_of_all_ranks(monkeypatch, caplog):
    changes = limits(monkeypatch, 1024, 524_288)
    _allow_connections(64, serves=True)
    assert changes == []
    _allow_connections(1024, serves=True)
    assert changes == [(4 * 1024 + 512, 524_288)]
    assert caplog.text == ""


def test_a_hard_limit_that_is_too_low_for_the_connections_is_reported(monkeypatch, caplog):
    changes = limits(monkeypatch, 1024, 4096)
    _allow_connections(1024, serves=True)
    assert changes == [(4096, 4096)]
    assert "this process may open 4096 files, and the store of 1024 ranks needs up to 4608" in caplog.text


def test_a_low_limit_of_a_launcher_that_serves_the_store_is_reported(monkeypatch, caplog):
    changes = limits(monkeypatch, 1024, resource.RLIM_INFINITY)
    _allow_connections(1024, serves=False)
    assert changes == []
    assert "the launcher, which serves the store, may open 1024 files" in caplog.text


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
from mb_launch.ranks.rank_store import World, rank_store
from torch.distributed import TCPStore
import socket
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
store = rank_store(World(world_size=1, address=f"127.0.0.1:{port}"), {})
held = [TCPStore("127.0.0.1", port, is_master=False) for _ in range(100)]
print(len(held), held[-1].add("x", 1))
"""


@pytest.mark.slow
def test_a_server_with_a_low_soft_limit_has_room_for_all_connections():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    shown = subprocess.run(
        [sys.executable, "-c", FEW_FILES, str(hard)], capture_output=True, text=True, timeout=300
    )
    assert shown.stdout == "100 1\n", shown.stderr
