"""Fixture: two ranks with Megatron Core, shared by all tests; and this folder on the path, for `tiny`."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if all(find_spec(name) for name in ("torch", "megatron", "mb_host", "mb_guard")):
    import mb_guard
    import mb_host

    mb_host.install()  # before any test module imports megatron
    mb_guard.install(quiet=True)


@pytest.fixture(scope="session")
def pool():
    pytest.importorskip("megatron.core")
    mb_host = pytest.importorskip("mb_host")
    with mb_host.RankPool(2, imports=["mb_guard.auto", "megatron.core"]) as ranks:
        yield ranks
