"""Fixtures: ranks that share the imports of Megatron, and this folder on the path."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def forge():
    pytest.importorskip("mb_host")
    if sys.platform != "linux":
        pytest.skip("ranks are forked, with signals of Linux")
    from fork_ranks import Forge

    forge = Forge()
    yield forge
    forge.close()


@pytest.fixture(scope="session")
def one_rank(forge):
    return forge.ranks(1)


@pytest.fixture(scope="session")
def two_ranks(forge):
    return forge.ranks(2)


@pytest.fixture(scope="session")
def four_ranks(forge):
    return forge.ranks(4)
