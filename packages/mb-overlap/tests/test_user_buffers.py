"""Arguments and conditions of the start of Transformer Engine's user buffers."""

from dataclasses import dataclass, replace

import pytest

from mb_overlap import BufferSettingsError, start_user_buffers


@dataclass(frozen=True, kw_only=True)
class Model:
    tp_comm_overlap: bool = True
    seq_length: int = 256
    hidden_size: int = 256
    tensor_model_parallel_size: int = 2
    context_parallel_size: int = 1
    fp8: str | None = None
    first_last_layers_bf16: bool = False
    tp_comm_overlap_cfg: object = None
    tp_comm_bootstrap_backend: str | None = "nccl"


def started(release="2.20", **fields):
    """Start the buffers of a small model, and return the arguments passed to Transformer Engine."""
    given = []
    model = replace(Model(), **fields)
    return start_user_buffers(model, micro_batch_size=8, release=release, initialize=given.append), given


def test_without_overlap_nothing_is_started():
    assert started(tp_comm_overlap=False) == (False, [])


def test_a_family_without_the_field_starts_nothing():
    assert start_user_buffers(object(), micro_batch_size=8) is False


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


def test_without_transformer_engine_the_newest_release_is_assumed():
    assert started(release=None)[1] == started()[1]


def test_settings_are_passed_on():
    bulk = {"num_sm": 4, "cga_size": 2, "set_sm_margin": False, "method": "bulk"}
    _, (given,) = started(tp_comm_overlap_cfg={"fc1_wgrad": bulk})
    assert given["ub_cfgs"] == {"fc1_wgrad": bulk}


def test_a_shape_that_cannot_be_split_is_rejected():
    with pytest.raises(BufferSettingsError, match="are not divisible"):
        started(tensor_model_parallel_size=3)
