"""Fixtures: guarded ranks that the tests share, and the import path of their functions."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # ranks inherit the path


def _has_megatron():
    return (
        find_spec("mb_host") is not None and find_spec("megatron") is not None and find_spec("megatron.core")
    )


def _pool(world_size):
    from mb_host import RankPool

    return RankPool(
        world_size,
        timeout_seconds=120,
        env={"CUDA_VISIBLE_DEVICES": ""},
        imports=["mb_guard.auto", "megatron.core"],
    )


@pytest.fixture(scope="session")
def megatron_on_a_host():
    if not _has_megatron():
        pytest.skip("needs megatron-core and mb-host")


@pytest.fixture(scope="session")
def one_rank(megatron_on_a_host):
    with _pool(1) as pool:
        yield pool


@pytest.fixture(scope="session")
def two_ranks(megatron_on_a_host):
    with _pool(2) as pool:
        yield pool


@pytest.fixture(scope="session")
def four_ranks(megatron_on_a_host):
    with _pool(4) as pool:
        yield pool


@pytest.fixture(scope="session")
def run_case(request, megatron_on_a_host):
    """Run a function of a file in this folder on N guarded ranks and return the results by rank."""

    def run(file, name, *args, ranks=1):
        from mb_host import function_in

        pool = request.getfixturevalue({1: "one_rank", 2: "two_ranks", 4: "four_ranks"}[ranks])
        return pool.run(function_in(Path(__file__).parent / file, name), *args)

    return run
