"""Bugs of Megatron Core: each is present without its patch, and absent with it."""

from pathlib import Path

import pytest

from mb_host import RankFailedError, function_in
from mb_host.matrix_products import is_onednn_faster
from mb_host.patches import ALL_PATCHES, ANY_DEVICE_PATCHES, patch_callbacks, without

FAULTS = Path(__file__).parent / "host_faults.py"
FORMATS = ["fully_reshardable", "dp_reshardable"]


@pytest.fixture(scope="module")
def saved(megatron, one_rank, tmp_path_factory):
    """Return the checkpoint directory, and the losses of the uninterrupted run that wrote it."""
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    [losses] = one_rank.run(function_in(FAULTS, "uninterrupted"), folder, FORMATS)
    return folder, losses


@pytest.mark.parametrize("optimizer_format", FORMATS)
def test_a_resumed_run_equals_an_uninterrupted_one(saved, one_rank, optimizer_format):
    folder, losses = saved
    assert one_rank.run(function_in(FAULTS, "resumed"), folder, optimizer_format, None) == [losses]


def test_a_shared_step_tensor_diverges(saved, one_rank):
    folder, losses = saved
    [diverged] = one_rank.run(function_in(FAULTS, "resumed"), folder, FORMATS[0], "separate_step_tensors")
    assert diverged[0] == losses[0]
    assert abs(diverged[-1] - losses[-1]) > 1e-3


@pytest.mark.parametrize(
    ("fault", "optimizer_format", "error"),
    [
        ("allocate_optimizer_state", "fully_reshardable", "AssertionError"),
        ("exclude_step_tensor", "fully_reshardable", "KeyError: 'step'"),
        ("load_without_grad", "dp_reshardable", "RuntimeError: a view of a leaf Variable"),
    ],
)
def test_the_other_bugs_raise_while_loading(saved, one_rank, fault, optimizer_format, error):
    with pytest.raises(RankFailedError, match=error):
        one_rank.run(function_in(FAULTS, "resumed"), saved[0], optimizer_format, fault)


def test_a_resume_with_a_gpu_needs_the_patches(saved, one_rank):
    folder, losses = saved
    [result] = one_rank.run(function_in(FAULTS, "patched_afterwards"), folder, FORMATS[0])
    assert result == ["AssertionError", sorted(ANY_DEVICE_PATCHES), losses]


def test_patches_that_are_not_applied_with_a_gpu():
    assert sorted({*ALL_PATCHES} - {*ANY_DEVICE_PATCHES}) == [
        "cpu_tensor_to_numpy",
        "gather_uneven_parts",
        "onednn_products",
        "scatter_uneven_parts",
    ]


def test_every_patch_has_a_target():
    assert sorted(patch_callbacks(ALL_PATCHES)) == [
        "megatron.core.optimizer.distrib_optimizer",
        "megatron.core.tensor_parallel.layers",
        "megatron.core.tensor_parallel.mappings",
        "megatron.core.transformer.moe.moe_utils",
        "megatron.core.transformer.multi_latent_attention",
    ]


def test_linear_layers_use_onednn_where_it_is_faster(one_rank, megatron):
    [(patched, differences)] = one_rank.run(function_in(FAULTS, "linear_layers"))
    assert patched is is_onednn_faster()
    assert all(difference < 1e-5 for difference in differences.values())
    assert (
        differences["weight"] > 0
    ) is patched  # sums of the other products have the same order in both libraries


@pytest.mark.parametrize("together", [False, True])
def test_rotary_keys_get_gradients_from_the_heads_of_all_ranks(together, one_rank, two_ranks, megatron):
    function = function_in(FAULTS, "gradient_of_keys")
    [alone] = one_rank.run(function, False, None)
    first, last = two_ranks.run(function, together, None)
    assert [*first, *last] == pytest.approx(alone, rel=1e-4, abs=1e-6)
    first, last = two_ranks.run(function, together, "reduce_rotary_key_gradient")
    assert [*first, *last] != pytest.approx(alone, rel=0.05, abs=1e-6)


def test_parts_of_unequal_length_are_gathered_and_their_gradients_summed(megatron, two_ranks):
    both = two_ranks.run(function_in(FAULTS, "unequal_parts"), None)
    assert both == [([0.0, 1.0, 1.0], [2.0]), ([0.0, 1.0, 1.0], [2.0, 2.0])]


def test_gloo_does_not_gather_parts_of_unequal_length(megatron, two_ranks):
    with pytest.raises(RankFailedError, match="invalid tensor size"):
        two_ranks.run(function_in(FAULTS, "unequal_parts"), "gather_uneven_parts")


def test_an_unknown_patch_is_rejected():
    with (
        pytest.raises(
            ValueError, match=r"own_step: no patch of that name.*Choose from .*separate_step_tensors"
        ),
        without("own_step"),
    ):
        pass
