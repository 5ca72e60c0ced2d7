"""Fixtures: pools of ranks that pay for Megatron's imports once, and this folder on the path."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def one_rank():
    mb_host = pytest.importorskip("mb_host")
    with mb_host.RankPool(1) as pool:
        yield pool


@pytest.fixture(scope="session")
def four_ranks():
    mb_host = pytest.importorskip("mb_host")
    with mb_host.RankPool(4) as pool:
        yield pool


@pytest.fixture(scope="session")
def two_ranks():
    mb_host = pytest.importorskip("mb_host")
    with mb_host.RankPool(2) as pool:
        yield pool
