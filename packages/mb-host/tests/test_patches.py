"""Patches for gloo and the CPU: each failure is there without its patch, and absent with it."""

from pathlib import Path

import pytest

from mb_host import RankFailedError, function_in
from mb_host.cpu.matrix_products import is_onednn_faster
from mb_host.megatron.patches import ALL_PATCHES, patch_callbacks, without

FAULTS = Path(__file__).parent / "host_faults.py"


def test_every_patch_has_a_target():
    assert sorted(patch_callbacks(ALL_PATCHES)) == [
        "megatron.core.tensor_parallel.layers",
        "megatron.core.tensor_parallel.mappings",
        "megatron.core.transformer.moe.moe_utils",
    ]


def test_linear_layers_use_onednn_where_it_is_faster(one_rank, megatron):
    [(patched, differences)] = one_rank.run(function_in(FAULTS, "linear_layers"))
    assert patched is is_onednn_faster()
    assert all(difference < 1e-5 for difference in differences.values())
    assert (
        differences["weight"] > 0
    ) is patched  # sums of the other products have the same order in both libraries


def test_parts_of_unequal_length_are_gathered_and_their_gradients_summed(megatron, two_ranks):
    both = two_ranks.run(function_in(FAULTS, "unequal_parts"), None)
    assert both == [([0.0, 1.0, 1.0], [2.0]), ([0.0, 1.0, 1.0], [2.0, 2.0])]


def test_gloo_does_not_gather_parts_of_unequal_length(megatron, two_ranks):
    with pytest.raises(RankFailedError, match="invalid tensor size"):
        two_ranks.run(function_in(FAULTS, "unequal_parts"), "gather_uneven_parts")


def test_an_unknown_patch_is_rejected():
    with (
        pytest.raises(
            ValueError, match=r"own_step: no patch of that name.*Choose from .*gather_uneven_parts"
        ),
        without("own_step"),
    ):
        pass
