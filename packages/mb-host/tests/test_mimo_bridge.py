"""Bridges between modules of a MIMO model use gloo groups, which are cleared after each run."""

from pathlib import Path

import pytest

from mb_host import function_in

BRIDGES = Path(__file__).parent / "host_mimo_bridge.py"
pytestmark = pytest.mark.usefixtures("megatron")


def test_bridges_use_gloo_in_each_run_of_the_same_ranks(two_ranks):
    for _ in range(2):
        assert two_ranks.run(function_in(BRIDGES, "exchange")) == [("gloo", "gloo", 2.0)] * 2
