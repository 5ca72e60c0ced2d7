"""Fixtures: rank pools that the tests share, and the import path of their functions."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # ranks inherit the path, and import host_gpt by name

from mb_host import RankPool

HOST_ONLY = {"CUDA_VISIBLE_DEVICES": ""}  # run on the CPU even if there is a GPU
HAS_MEGATRON = find_spec("megatron") is not None and find_spec("megatron.core") is not None
IMPORTS = ["megatron.core", "torch._dynamo"] if HAS_MEGATRON else []


@pytest.fixture(scope="module")
def one_rank():
    with RankPool(1, timeout_seconds=100, env=HOST_ONLY, imports=IMPORTS) as pool:
        yield pool


@pytest.fixture(scope="module")
def two_ranks():
    with RankPool(2, timeout_seconds=100, env=HOST_ONLY, imports=IMPORTS) as pool:
        yield pool


@pytest.fixture(scope="module")
def four_ranks():
    with RankPool(4, timeout_seconds=200, env=HOST_ONLY, imports=IMPORTS) as pool:
        yield pool


@pytest.fixture(scope="session")
def megatron():
    """Skip if Megatron Core is not installed; this process never imports it."""
    if not HAS_MEGATRON:
        pytest.skip("needs megatron-core (pip install mb-host[mcore])")
