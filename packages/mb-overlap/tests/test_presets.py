"""The 19 presets against an expected table, and the search."""

import json
import warnings
from math import log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mb_overlap
from mb_overlap import PRESETS, PresetMatch, UnknownPresetError, find_preset, preset, to_transformer_engine

WRITTEN_OUT = json.loads(Path(__file__).with_name("presets.json").read_text())


def written_out(name):
    entries = [WRITTEN_OUT["entries"][number] for number in WRITTEN_OUT["presets"][name]]
    return {gemm: entry for gemm, entry in zip(WRITTEN_OUT["gemms"], entries, strict=True) if entry}


def test_preset_names_match_the_expected_table():
    assert list(PRESETS) == list(WRITTEN_OUT["presets"])


@pytest.mark.parametrize("name", WRITTEN_OUT["presets"])
def test_preset_matches_the_expected_table(name):
    assert to_transformer_engine(getattr(mb_overlap, name)) == written_out(name)


@pytest.mark.parametrize("name", WRITTEN_OUT["presets"])
def test_every_setting_has_its_declared_type(name):
    settings = to_transformer_engine(preset(name))
    types = {key: type(value) for entry in settings.values() for key, value in entry.items()}
    assert types.get("fp8_buf", bool) is types["set_sm_margin"] is bool
    assert types["num_sm"] is types["cga_size"] is int
    assert types["method"] is str


def test_nineteen_names_hold_fifteen_distinct_tables():
    assert len({json.dumps(to_transformer_engine(preset(name)), sort_keys=True) for name in PRESETS}) == 15


SHAPE = {
    "precision": "fp8",
    "gpu": "h100",
    "hidden_size": 8192,
    "tp": 2,
    "micro_batch_size": 1,
    "seq_length": 4096,
}


def found(**requested):
    match = find_preset(**{**SHAPE, **requested})
    return match.preset.name, match.distance, match.differences


def test_exact_match_is_found():
    match = find_preset(
        precision="fp8", gpu="H100", hidden_size=16384, tp=8, cp=2, micro_batch_size=1, seq_length=8192
    )
    assert match.preset is PRESETS["userbuffers_fp8_h100_h16384_tp8_cp2_mbs1_seqlen8192"]
    assert (match.exact, match.distance) == (True, 0.0)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_preset_is_found_by_its_shape(preset):
    shape = {name: getattr(preset, name) for name in (*SHAPE, "cp", "lora")}
    assert find_preset(**shape) == PresetMatch(preset=preset, distance=0.0, differences=())


@pytest.mark.parametrize(
    ("requested", "name", "distance", "differences"),
    [
        ({"lora": True}, "fp8_h100_h8192_tp2_mbs1_seqlen4096_lora", 0.0, ()),
        ({}, "fp8_h100_h8192_tp4_mbs1_seqlen8192", 2.0, ("tp 4, not 2", "seq_length 8192, not 4096")),
        ({"tp": 4, "seq_length": 8192, "gpu": "h200"}, "fp8_h100_h8192_tp4_mbs1_seqlen8192", 0.5,
         ("h100, not h200",)),
        ({"hidden_size": 16384, "seq_length": 2048, "tp": 4, "lora": True, "precision": "bf16"},
         "fp8_h100_h16384_tp4_mbs1_seqlen2048_lora", 2.0, ("fp8, not bf16",)),
        ({"tp": 2, "seq_length": 8192, "gpu": "a100"}, "fp8_h100_h8192_tp4_mbs1_seqlen8192", 3.0,
         ("tp 4, not 2", "h100, not a100")),
    ],
)  # fmt: skip
def test_nearest_preset_is_found_with_its_distance(requested, name, distance, differences):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert found(**requested) == (f"userbuffers_{name}", distance, differences)
    texts = [str(warning.message) for warning in caught]
    assert [all(text in line for text in (name, *differences)) for line in texts] == [True] * bool(
        differences
    )


@given(
    hidden_size=st.integers(1, 32768),
    tp=st.integers(1, 16),
    cp=st.integers(1, 16),
    seq_length=st.integers(1, 131072),
)
@pytest.mark.filterwarnings("ignore:find_preset")
def test_distance_is_at_least_the_difference_of_the_sizes(hidden_size, tp, cp, seq_length):
    requested = {"hidden_size": hidden_size, "tp": tp, "cp": cp, "seq_length": seq_length}
    match = find_preset(**{**SHAPE, **requested})
    assert match.exact == (match.distance == 0)
    assert match.distance >= sum(
        abs(log2(getattr(match.preset, name) / size)) for name, size in requested.items()
    )


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        ({"precision": "fp16"}, "'fp16' is unknown.*bf16 and fp8"),
        ({"gpu": "rtx"}, "gpu: 'rtx' is not a known GPU.*h100, .*gb300"),
        ({"tp": 0}, "tp: 0 is not a valid size"),
        ({"tp": float("nan")}, "tp: nan is not a valid size"),
        ({"seq_length": -1}, "seq_length: -1 is not a valid size"),
    ],
)
def test_invalid_requests_are_rejecting_rules(requested, text):
    with pytest.raises(ValueError, match=text):
        found(**requested)


def test_each_access_is_a_new_object():
    name = "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"
    getattr(mb_overlap, name).proj_fprop.num_sm = 99
    assert getattr(mb_overlap, name).proj_fprop.num_sm == 24


def test_unknown_preset_lists_the_closest_names():
    with pytest.raises(UnknownPresetError, match="userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"):
        preset("userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen4096")


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="userbuffers_bf16_h100"):
        mb_overlap.presets.table.userbuffers_bf16_h100  # noqa: B018


@pytest.mark.parametrize(
    ("precision", "found"), [("bfloat16", "bf16"), ("torch.bfloat16", "bf16"), ("float8", "fp8")]
)
@pytest.mark.filterwarnings("ignore:find_preset")
def test_names_of_types_are_precisions(precision, found):
    assert find_preset(**{**SHAPE, "precision": precision}) == find_preset(**{**SHAPE, "precision": found})
