"""Environment variables to set before CUDA is initialized, by parallel layout."""

from itertools import product
from types import SimpleNamespace

import pytest

from mb_overlap import UnknownGpuError, model_env_vars, recommended_env_vars

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
MARGINS = ("NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN")


@pytest.mark.parametrize(
    ("gpu", "one", "both"),
    [
        (8, "1", "1"),
        (9, "1", "1"),
        ("H100", "1", "1"),
        (10, None, "32"),
        ("gb200", None, "32"),
        (12, None, "32"),
    ],
)
def test_queues_follow_the_gpu_and_what_communicates(gpu, one, both):
    for tp, cp, dp, pp in product((1, 2), repeat=4):
        layer, across = tp > 1 or cp > 1, dp > 1 or pp > 1
        expected = (both if across else one) if layer else None
        assert recommended_env_vars(gpu=gpu, tp=tp, cp=cp, dp=dp, pp=pp).get(QUEUES) == expected


def test_single_queue_is_never_chosen_where_it_would_serialize():
    assert QUEUES not in recommended_env_vars(gpu="h100", tp=2, dp=2, fsdp=True)
    assert recommended_env_vars(gpu="h100", tp=2, dp=2, moe_overlap=True)[QUEUES] == "32"
    assert recommended_env_vars(gpu="b200", tp=2, dp=2, fsdp=True)[QUEUES] == "32"


@pytest.mark.parametrize(
    ("layout", "margin"),
    [
        ({}, "16"),
        ({"dp": 1}, None),
        ({"tp": 8, "dp": 1}, None),
        ({"pp": 2, "dp": 1}, "16"),
        ({"dp": 2}, "16"),
        ({"pp": 2}, "16"),
        ({"dp": 2, "moe_overlap": True}, "20"),
    ],
)
def test_norms_leave_room_for_concurrent_kernels(layout, margin):
    assert [recommended_env_vars(gpu="h100", **layout).get(name) for name in MARGINS] == [margin, margin]


def test_value_set_by_the_user_is_kept():
    mine = {QUEUES: "8", MARGINS[0]: "0"}
    assert recommended_env_vars(gpu="h100", tp=2, dp=2, env=mine) == {MARGINS[1]: "16"}


def test_without_a_gpu_nothing_is_recommended():
    assert recommended_env_vars(gpu=None, tp=2, dp=2) == {}


@pytest.mark.parametrize(
    ("gpu", "near"), [("h1000", "h100"), ("abacus", "v100"), ("NVIDIA H100 MIG 1g.10gb", "")]
)
def test_unknown_gpu_is_rejected_with_the_closest_names(gpu, near):
    with pytest.raises(UnknownGpuError, match=f"gpu: '{gpu}' is not a known GPU.*{near}"):
        recommended_env_vars(gpu=gpu, tp=2, dp=2)


def test_without_a_data_parallel_size_the_margins_are_set():
    assert recommended_env_vars(gpu="NVIDIA H100 80GB HBM3", tp=2) == recommended_env_vars(
        gpu="h100", tp=2, dp=2
    )


def test_a_model_section_gives_the_parallel_layout():
    model = SimpleNamespace(
        tensor_model_parallel_size=2,
        context_parallel_size=1,
        pipeline_model_parallel_size=1,
        overlap_moe_expert_parallel_comm=False,
        moe_token_dispatcher_type="alltoall",
    )
    chosen = {"NVTE_FWD_LAYERNORM_SM_MARGIN": "8"}
    assert model_env_vars(model, world_size=4, gpu="h100", env=chosen) == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NVTE_BWD_LAYERNORM_SM_MARGIN": "16",
    }
