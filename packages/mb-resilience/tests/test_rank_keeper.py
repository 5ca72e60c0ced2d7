"""Keepers of ranks, and the parts of restarts that need no NVRx."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from mb_resilience import InProcessRestartConfig, RankFault
from mb_resilience.restarts.arguments import (
    Rendezvous,
    prepare_environment,
    restart_fields,
    store_owner,
)
from mb_resilience.restarts.native_sockets import native_connections, open_sockets
from mb_resilience.restarts.rank_faults import sorted_faults
from mb_resilience.restarts.rank_keeper import keep_run_alive
from mb_resilience.restarts.signals import HeldSignals


def test_a_run_without_restarts_and_a_single_process_have_no_keeper():
    assert keep_run_alive(os.getpid, None) == os.getpid()
    assert keep_run_alive(os.getpid, InProcessRestartConfig()) == os.getpid()
    assert keep_run_alive(os.getpid, InProcessRestartConfig(enabled=True), environment={}) == os.getpid()


@pytest.mark.parametrize("end", ["7", "None", "'no space is left'"])
def test_a_rank_ends_as_an_interpreter_would(end):
    kept = f"from mb_resilience.restarts.rank_keeper import end_process\nend_process(lambda: exit({end}))"
    ends = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        for program in (f"exit({end})", kept)
    ]
    assert (ends[0].returncode, ends[0].stderr) == (ends[1].returncode, ends[1].stderr)


KEPT = """
import os, signal, sys, time
from mb_resilience import InProcessRestartConfig
from mb_resilience.restarts.rank_keeper import keep_run_alive
def rank():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print(os.getpid(), flush=True)
    time.sleep(60)
world = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
sys.exit(keep_run_alive(rank, InProcessRestartConfig(enabled=True), environment=world))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the death of a parent is reported by Linux only")
def test_a_rank_is_killed_with_its_keeper():
    with subprocess.Popen([sys.executable, "-c", KEPT], stdout=subprocess.PIPE, text=True) as keeper:
        assert int(keeper.stdout.readline()) != keeper.pid
        start = time.monotonic()
        keeper.kill()
        assert keeper.stdout.read() == ""  # closed by the end of the rank
        assert time.monotonic() - start < 30


def test_causes_are_listed_before_their_consequences_and_once_per_rank():
    consequence = RankFault(
        rank=0, kind="EXCEPTION", error="RuntimeError: [gloo/tcp.cc] Connection closed by peer"
    )
    raised = RankFault(rank=1, kind="EXCEPTION", error="ValueError: x")
    dead = RankFault(rank=2, kind="TERMINATED")
    slow = RankFault(rank=1, kind="SOFT_TIMEOUT")
    assert sorted_faults([consequence, slow, raised, dead]) == (dead, raised, consequence)
    assert [str(fault) for fault in (raised, dead)] == [
        "rank 1 raised ValueError: x",
        "rank 2 was killed, or its process ended",
    ]


def test_the_first_attempt_adds_no_fields_to_its_event():
    assert restart_fields(None) == {}


@pytest.mark.parametrize(
    ("environment", "owner"),
    [
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "MB_RESTART_KEEPER": "1"}, "launcher"),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False", "MB_RESTART_KEEPER": "1"}, "keeper"),
        ({}, "rank 0"),
    ],
)
def test_the_store_is_served_by_a_process_that_outlives_the_ranks_if_there_is_one(environment, owner):
    assert store_owner(environment) == owner


def test_a_process_without_a_launcher_is_a_single_rank():
    assert Rendezvous.from_environment({}) == Rendezvous(host="127.0.0.1", port=0, rank=0, world_size=1)


def test_variables_of_the_user_are_kept():
    environment = {"NCCL_NVLS_ENABLE": "1"}
    prepare_environment(InProcessRestartConfig(), environment)
    assert environment == {"NCCL_NVLS_ENABLE": "1"}
    prepare_environment(InProcessRestartConfig(enabled=True), environment)
    assert (environment["NCCL_NVLS_ENABLE"], environment["TORCH_CPP_LOG_LEVEL"]) == ("1", "error")


def test_signals_between_attempts_are_delivered_to_the_next_one():
    received = []
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        with HeldSignals([signal.SIGUSR1]) as held:
            signal.raise_signal(signal.SIGUSR1)
            assert received == []
            with held.delivered():
                assert received == [signal.SIGUSR1]
            signal.raise_signal(signal.SIGUSR1)
        assert received == [signal.SIGUSR1]  # a spare rank ignores it
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_sockets_of_python_and_older_ones_are_no_native_connections():
    server = socket.create_server(("127.0.0.1", 0))
    before = open_sockets()
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    with server, client, accepted:
        assert [*native_connections(opened_before=before)] == []
        native = os.dup(client.fileno())  # no Python object owns it
        assert [*native_connections(opened_before=open_sockets())] == []
        os.close(native)
