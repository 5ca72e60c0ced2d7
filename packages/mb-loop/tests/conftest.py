"""Fixture: two ranks with Megatron Core, shared by all tests of a module."""

from importlib.util import find_spec

import pytest

if all(find_spec(name) for name in ("torch", "megatron", "mb_host")):
    import mb_host

    mb_host.install()  # before any test module imports megatron


@pytest.fixture(scope="session")
def pool():
    pytest.importorskip("megatron.core")
    mb_host = pytest.importorskip("mb_host")
    with mb_host.RankPool(2, imports=["megatron.core"]) as ranks:
        yield ranks
