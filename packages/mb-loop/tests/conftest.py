"""Fixture: two ranks with Megatron Core, shared by all tests of a module."""

import pytest


@pytest.fixture(scope="session")
def pool():
    pytest.importorskip("megatron.core")
    mb_host = pytest.importorskip("mb_host")
    with mb_host.RankPool(2, imports=["megatron.core"]) as ranks:
        yield ranks
