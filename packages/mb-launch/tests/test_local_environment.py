"""Variables of the processes of one machine: threads, and the network interface of collectives."""

import os

import pytest

from mb_launch import keep_collectives_local, set_omp_threads, set_unset_variables
from mb_launch.ranks.local_environment import loopback_interface


def test_collectives_listen_on_the_loopback_interface_unless_another_is_named():
    environment = {"NCCL_SOCKET_IFNAME": "eth7"}
    keep_collectives_local(environment)
    assert environment == {"NCCL_SOCKET_IFNAME": "eth7", "GLOO_SOCKET_IFNAME": loopback_interface()}


@pytest.mark.parametrize(("processes", "threads"), [(2, "4"), (3, "2"), (16, "1")])
def test_each_process_gets_its_share_of_the_cores(monkeypatch, processes, threads):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    environment = {}
    set_omp_threads(environment, processes=processes)
    assert environment == {"OMP_NUM_THREADS": threads}


def test_threads_of_the_user_are_kept():
    environment = {"OMP_NUM_THREADS": "5"}
    set_omp_threads(environment, processes=2)
    assert environment == {"OMP_NUM_THREADS": "5"}


def test_a_variable_of_the_shell_is_kept_and_logged():
    lines, environment = [], {"A": "shell"}
    set_unset_variables({"A": "recipe", "B": 1}, log=lines.append, environment=environment)
    assert environment == {"A": "shell", "B": "1"}
    assert lines == ["env_vars.A: the shell's value 'shell' takes precedence over 'recipe'"]
