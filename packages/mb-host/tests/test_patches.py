"""Faults of Megatron Core: each is there without its patch, and gone with it."""

import sys
from pathlib import Path

import pytest
from host_layouts import Layout

from mb_host import RankFailedError, function_in
from mb_host.patches import ALL_PATCHES, ANY_DEVICE_PATCHES, callbacks, without

FAULTS = Path(__file__).parent / "host_faults.py"
FORMATS = ["fully_reshardable", "dp_reshardable"]


@pytest.fixture(scope="module")
def saved(megatron, one_rank, tmp_path_factory):
    """Return the folder of checkpoints, and the losses of the run that wrote them and was never stopped."""
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    [losses] = one_rank.run(function_in(FAULTS, "unbroken"), folder, FORMATS)
    return folder, losses


@pytest.mark.parametrize("optimizer_format", FORMATS)
def test_a_resumed_run_goes_on_as_if_never_stopped(saved, one_rank, optimizer_format):
    folder, losses = saved
    assert one_rank.run(function_in(FAULTS, "resumed"), folder, optimizer_format, None) == [losses]


def test_one_step_tensor_for_all_parameters_drifts(saved, one_rank):
    folder, losses = saved
    [drifted] = one_rank.run(function_in(FAULTS, "resumed"), folder, FORMATS[0], "separate_step_tensors")
    assert drifted[0] == losses[0]
    assert abs(drifted[-1] - losses[-1]) > 1e-3


@pytest.mark.parametrize(
    ("fault", "optimizer_format", "error"),
    [
        ("allocate_optimizer_state", "fully_reshardable", "AssertionError"),
        ("exclude_step_tensor", "fully_reshardable", "KeyError: 'step'"),
        ("load_without_grad", "dp_reshardable", "RuntimeError: a view of a leaf Variable"),
    ],
)
def test_the_other_faults_refuse_to_load(saved, one_rank, fault, optimizer_format, error):
    with pytest.raises(RankFailedError, match=error):
        one_rank.run(function_in(FAULTS, "resumed"), saved[0], optimizer_format, fault)


def test_where_there_is_a_gpu_a_resume_needs_the_patches_too(saved, one_rank):
    folder, losses = saved
    [answer] = one_rank.run(function_in(FAULTS, "patched_afterwards"), folder, FORMATS[0])
    assert answer == ["AssertionError", sorted(ANY_DEVICE_PATCHES), losses]


def test_what_a_machine_with_a_gpu_does_not_need():
    assert sorted({*ALL_PATCHES} - {*ANY_DEVICE_PATCHES}) == [
        "cpu_tensor_to_numpy",
        "gather_uneven_parts",
        "scatter_uneven_parts",
    ]


def test_every_mend_has_a_target():
    assert sorted(callbacks(ALL_PATCHES)) == [
        "megatron.core.distributed.distributed_data_parallel",
        "megatron.core.optimizer.distrib_optimizer",
        "megatron.core.tensor_parallel.mappings",
        "megatron.core.transformer.moe.moe_utils",
        "megatron.core.transformer.multi_latent_attention",
    ]


HELD = {"experts": Layout(experts=4), "distributed optimizer": Layout(distributed_optimizer=True)}


@pytest.mark.parametrize("fault", [None, "weak_backward_hooks"])
@pytest.mark.parametrize("layout", HELD.values(), ids=HELD.keys())
def test_a_model_that_is_dropped_is_freed(layout, fault, one_rank, megatron):
    assert one_rank.run(function_in(FAULTS, "stays"), layout, fault) == [fault is not None]


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_runs_leave_no_threads_behind(one_rank, megatron):
    runs = [one_rank.run(function_in(FAULTS, "threads_of_a_run"), HELD["experts"]) for _ in range(4)]
    assert len({*map(tuple, runs[1:])}) == 1  # the first run starts autograd's own


@pytest.mark.parametrize("together", [False, True])
def test_rotated_keys_learn_from_the_heads_of_all_ranks(together, one_rank, two_ranks, megatron):
    function = function_in(FAULTS, "gradient_of_keys")
    [alone] = one_rank.run(function, False, None)
    first, last = two_ranks.run(function, together, None)
    assert [*first, *last] == pytest.approx(alone, rel=1e-4, abs=1e-6)
    first, last = two_ranks.run(function, together, "reduce_rotary_key_gradient")
    assert [*first, *last] != pytest.approx(alone, rel=0.05, abs=1e-6)


def test_parts_of_unequal_length_are_gathered_and_their_gradients_added_up(megatron, two_ranks):
    both = two_ranks.run(function_in(FAULTS, "unequal_parts"), None)
    assert both == [([0.0, 1.0, 1.0], [2.0]), ([0.0, 1.0, 1.0], [2.0, 2.0])]


def test_gloo_does_not_gather_parts_of_unequal_length(megatron, two_ranks):
    with pytest.raises(RankFailedError, match="invalid tensor size"):
        two_ranks.run(function_in(FAULTS, "unequal_parts"), "gather_uneven_parts")


def test_an_unknown_mend_is_refused():
    with (
        pytest.raises(ValueError, match=r"own_step unknown.*choose from .*separate_step_tensors"),
        without("own_step"),
    ):
        pass
