"""Fixtures: ranks that share the imports of Megatron, and this folder on the path."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def fork_server():
    pytest.importorskip("mb_host")
    if sys.platform != "linux":
        pytest.skip("ranks are forked, with signals of Linux")
    from fork_ranks import ForkServer

    fork_server = ForkServer()
    yield fork_server
    fork_server.close()


@pytest.fixture(scope="session")
def one_rank(fork_server):
    return fork_server.ranks(1)


@pytest.fixture(scope="session")
def two_ranks(fork_server):
    return fork_server.ranks(2)


@pytest.fixture(scope="session")
def four_ranks(fork_server):
    return fork_server.ranks(4)
