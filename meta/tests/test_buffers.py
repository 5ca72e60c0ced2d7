"""Arguments and conditions of the start of Transformer Engine's user buffers."""

import pytest

from mb_overlap import BufferSettingsError
from mb_trainer import RECIPES
from mb_trainer.buffers import start_user_buffers


def started(release="2.20", **model):
    """Start the buffers of a small model, and return the arguments passed to Transformer Engine."""
    config = RECIPES["gpt_tiny"].build()
    for name, value in {"tp_comm_overlap": True, "tensor_model_parallel_size": 2, **model}.items():
        setattr(config.model, name, value)
    given = []
    return start_user_buffers(config, release=release, initialize=given.append), given


def test_without_overlap_nothing_is_started():
    assert started(tp_comm_overlap=False) == (False, [])


def test_the_shape_is_that_of_a_microbatch():
    _, (given,) = started(context_parallel_size=2)
    assert given == {
        "shape": [256 * 8 // 2, 256],
        "tp_size": 2,
        "quantization_modes": ["NONE"],
        "ub_cfgs": {},
        "bootstrap_backend": "nccl",
    }


@pytest.mark.parametrize(
    ("model", "modes"),
    [
        ({"fp8": "hybrid"}, ["FP8"]),
        ({"fp8": "hybrid", "first_last_layers_bf16": True}, ["FP8", "NONE"]),
        ({"first_last_layers_bf16": True}, ["NONE"]),
    ],
)
def test_the_types_are_those_of_the_layers(model, modes):
    _, (given,) = started(**model, tp_comm_bootstrap_backend=None)
    assert (given["quantization_modes"], "bootstrap_backend" in given) == (modes, False)


def test_settings_go_through():
    bulk = {"num_sm": 4, "cga_size": 2, "set_sm_margin": False, "method": "bulk"}
    _, (given,) = started(tp_comm_overlap_cfg={"fc1_wgrad": bulk})
    assert given["ub_cfgs"] == {"fc1_wgrad": bulk}


def test_a_shape_that_cannot_be_split_is_refused():
    with pytest.raises(BufferSettingsError, match="are not divisible"):
        started(tensor_model_parallel_size=3)
