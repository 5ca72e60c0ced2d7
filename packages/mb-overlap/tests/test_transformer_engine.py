"""Settings dictionary for Transformer Engine and arguments of `initialize_ub`, by release."""

import sys
from importlib import import_module

import pytest

from mb_overlap import (
    PRESETS,
    BufferSettingsError,
    initialize_ub_arguments,
    preset,
    setting_problems,
    to_transformer_engine,
)
from mb_overlap.transformer_engine.te_versions import NEWEST, parse_version

LORA = "userbuffers_fp8_h100_h8192_tp2_mbs1_seqlen4096_lora"
SHAPE = {"seq_length": 8192, "micro_batch_size": 2, "hidden_size": 4096, "tp": 4, "cp": 2}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("release", [(1, 9), (1, 13), (2, 1), (2, 7), NEWEST])
def test_every_preset_fits_every_release(name, release):
    assert setting_problems(to_transformer_engine(preset(name)), release=release) == []


BULK, RING = {"method": "bulk"}, {"method": "ring_exchange"}
ATOMIC = {"method": "ring_exchange", "atomic_gemm": True}
WRONG = [
    ({"qkv_wgrd": BULK}, ["qkv_wgrd is not a GEMM of a layer (did you mean qkv_wgrad?)"]),
    ({"xyz": {}}, ["xyz is not a GEMM of a layer"]),
    ({1: {}}, ["1 is not a GEMM of a layer"]),
    ({"fc1_fprop": {1: 2}}, ["fc1_fprop.1 is not a setting"]),
    ({"fc1_fprop": "ring"}, ["fc1_fprop is 'ring', not a mapping"]),
    ({"fc1_fprop": {"num_sms": 1}}, ["fc1_fprop.num_sms is not a setting (did you mean num_sm?)"]),
    ({"fc1_fprop": {"fp8_buf": (False,)}}, ["fc1_fprop.fp8_buf is (False,), not of type bool"]),
    ({"fc1_fprop": {"num_sm": True}}, ["fc1_fprop.num_sm is True, not of type int"]),
    ({"fc1_fprop": {"method": "rings"}}, [
        "fc1_fprop.method 'rings' is not one of ring_exchange, pipeline, bulk, external"]),
    ({"fc1_fprop": {"method": "external"}}, [
        "fc1_fprop.method cannot be external: proj_wgrad and fc2_wgrad require the method external, and no other "
        "GEMM supports it"]),
    ({"fc2_wgrad": BULK}, [
        "fc2_wgrad.method cannot be bulk: proj_wgrad and fc2_wgrad require the method external, and no other "
        "GEMM supports it"]),
    ({"fc2_dgrad": {"method": "pipeline"}}, [
        "fc2_dgrad.method cannot be pipeline, because the GEMM gathers its input"]),
    ({"fc1_dgrad": RING, "fc1_wgrad": BULK}, [
        "fc1_wgrad cannot be set, because fc1_dgrad is ring_exchange and replaces it"]),
    ({"qkv_fprop": ATOMIC, "proj_fprop": RING}, [
        "qkv_fprop and proj_fprop must both be atomic rings or neither (qkv_fprop is one), because the first permutes "
        "the chunks and the second restores their order"]),
    ({"qkv_fprop": ATOMIC, "proj_fprop": ATOMIC}, []),
    ({"proj_fprop": {"atomic_gemm": True}}, []),  # a pipeline, which is its default
    ({"fc1_fprop": {"atomic_gemm": True}, "fc2_fprop": {"atomic_gemm": True}}, [
        "fc1_fprop and fc2_fprop must both be atomic rings or neither (fc1_fprop is one), because the first permutes "
        "the chunks and the second restores their order"]),
    ({"fc1_dgrad": {"method": "pipeline"}}, []),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "problems"), WRONG)
def test_invalid_settings_are_reported(settings, problems):
    assert setting_problems(settings) == problems


@pytest.mark.parametrize(
    ("settings", "release", "problem"),
    [
        ({}, "1.8.0", "Transformer Engine 1.8.0 is too old: 1.9 is the first release that does not require MPI"),
        ({"proj_wgrad": {}}, "2.6.0", "proj_wgrad needs Transformer Engine 2.7, not 2.6.0"),
        ({"fc1_fprop": {"comm_priority": 0}}, "1.13", "fc1_fprop.comm_priority needs Transformer Engine 2.1, not 1.13"),
        ({"fc1_fprop": {"method": "external"}}, "2.1", "fc1_fprop.method 'external' is not one of ring_exchange, "
         "pipeline, bulk"),
    ],
)  # fmt: skip
def test_settings_that_a_release_does_not_support(settings, release, problem):
    assert setting_problems(settings, release=parse_version(release)) == [problem]


def test_arguments_of_a_late_release_have_quantization_modes():
    arguments = initialize_ub_arguments(**SHAPE, quantization_modes=["FP8", "NONE"])
    assert arguments == {
        "shape": [8192, 4096], "tp_size": 4, "quantization_modes": ["FP8", "NONE"], "ub_cfgs": {},
    }  # fmt: skip


@pytest.mark.parametrize(("modes", "fp8"), [(["NONE"], False), (["FP8", "NONE"], True)])
def test_arguments_of_an_early_release_have_use_fp8(modes, fp8):
    arguments = initialize_ub_arguments(**SHAPE, release="2.7.0", quantization_modes=modes)
    assert arguments == {"shape": [8192, 4096], "tp_size": 4, "use_fp8": fp8, "ub_cfgs": {}}


def test_method_of_a_reduce_scatter_dgrad_is_set_once():
    first, second = initialize_ub_arguments(
        **SHAPE, settings=preset(LORA), quantization_modes=["FP8", "NONE"]
    )["ub_cfgs"]
    assert first == to_transformer_engine(preset(LORA))
    assert {**second["fc1_dgrad"], "method": "pipeline"} == first["fc1_dgrad"]
    assert "method" not in second["fc1_dgrad"]


def test_shape_that_is_not_divisible_is_rejecting_rules():
    with pytest.raises(BufferSettingsError, match=r"shape: 6 tokens are not divisible .*multiple of 8"):
        initialize_ub_arguments(**{**SHAPE, "seq_length": 3})


def test_invalid_settings_are_rejected_together():
    wrong = {"qkv_wgrd": {}, "fc1_fprop": {"num_sms": 1}}
    with pytest.raises(
        BufferSettingsError, match=r"tp_comm_overlap_cfg: qkv_wgrd is not.*; fc1_fprop.num_sms is not"
    ):
        initialize_ub_arguments(**SHAPE, settings=wrong)


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("2.20.2", (2, 20, 2)),
        ("2.6.0.post1", (2, 6, 0)),
        ("2.6.0a0+34c6371d24", (2, 6, 0)),
        ("2.7.0.dev0", (2, 7, 0)),
    ],
)
def test_versions_are_parsed_as_numbers(version, numbers):
    assert parse_version(version) == numbers


def test_version_without_numbers_is_rejecting_rules():
    with pytest.raises(ValueError, match="'new' is invalid"):
        parse_version("new")


FAKE = """
from enum import Enum
class UserBufferQuantizationMode(Enum):
    NONE = "none"
    FP8 = "fp8"
calls = []
def initialize_ub(**arguments):
    calls.append(arguments)
"""


@pytest.fixture
def te_stub(without_transformer_engine, monkeypatch, tmp_path):
    """Import a stub of Transformer Engine, and remove it from `sys.modules` afterwards."""
    folder = tmp_path / "transformer_engine" / "pytorch" / "module"
    folder.mkdir(parents=True)
    for each in (folder, *folder.parents[:2]):
        (each / "__init__.py").touch()
    (folder / "base.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield import_module("mb_overlap.transformer_engine.te")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_initialization_replaces_the_names_of_the_modes(te_stub):
    te_stub.initialize_user_buffers(initialize_ub_arguments(**SHAPE, quantization_modes=["FP8", "NONE"]))
    te_stub.initialize_user_buffers(initialize_ub_arguments(**SHAPE, release="2.7"))
    modes = te_stub.base.UserBufferQuantizationMode
    assert [call.get("quantization_modes") for call in te_stub.base.calls] == [[modes.FP8, modes.NONE], None]
