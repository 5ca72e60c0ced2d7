"""Ranks that all tests of a session share, and the folder that their functions are imported from."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # ranks inherit it: they import host_gpt by name

from mb_host import RankPool

HOST_ONLY = {"CUDA_VISIBLE_DEVICES": ""}  # the host stands in where there is a GPU, too


@pytest.fixture(scope="session")
def one_rank():
    with RankPool(1, timeout_seconds=100, env=HOST_ONLY) as pool:
        yield pool


@pytest.fixture(scope="session")
def two_ranks():
    with RankPool(2, timeout_seconds=100, env=HOST_ONLY) as pool:
        yield pool


@pytest.fixture(scope="session")
def four_ranks():
    with RankPool(4, timeout_seconds=200, env=HOST_ONLY) as pool:
        yield pool


@pytest.fixture(scope="session")
def megatron():
    """Skip where Megatron Core is not installed; this process never imports it."""
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        pytest.skip("needs megatron-core (pip install mb-host[mcore])")
