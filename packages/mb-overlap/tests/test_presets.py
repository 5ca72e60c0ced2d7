"""The 19 presets, entry by entry, against a written-out table; and the look-up."""

import json
from pathlib import Path

import pytest

import mb_overlap
from mb_overlap import PRESETS, UnknownPresetError, find_preset, preset, to_transformer_engine

WRITTEN_OUT = json.loads(Path(__file__).with_name("presets.json").read_text())


def written_out(name):
    entries = [WRITTEN_OUT["entries"][number] for number in WRITTEN_OUT["presets"][name]]
    return {gemm: entry for gemm, entry in zip(WRITTEN_OUT["gemms"], entries, strict=True) if entry}


def test_the_names_are_those_of_the_written_out_table():
    assert list(PRESETS) == list(WRITTEN_OUT["presets"])


@pytest.mark.parametrize("name", WRITTEN_OUT["presets"])
def test_a_preset_holds_what_the_table_says(name):
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


def test_the_lookup_finds_what_was_tuned_for_exactly_this():
    found = find_preset(
        precision="fp8", gpu="H100", hidden_size=16384, tp=8, cp=2, micro_batch_size=1, seq_length=8192
    )
    assert found is PRESETS["userbuffers_fp8_h100_h16384_tp8_cp2_mbs1_seqlen8192"]


def test_the_lookup_tells_lora_apart():
    shape = {
        "precision": "fp8",
        "gpu": "h100",
        "hidden_size": 8192,
        "tp": 2,
        "micro_batch_size": 1,
        "seq_length": 4096,
    }
    assert find_preset(**shape) is None
    assert find_preset(**shape, lora=True).name == "userbuffers_fp8_h100_h8192_tp2_mbs1_seqlen4096_lora"


def test_the_lookup_refuses_a_precision_that_no_preset_can_have():
    with pytest.raises(ValueError, match=r"'bfloat16' is unknown.*bf16 and fp8"):
        find_preset(
            precision="bfloat16", gpu="h100", hidden_size=8192, tp=4, micro_batch_size=1, seq_length=8192
        )


def test_each_access_is_a_new_object():
    name = "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"
    getattr(mb_overlap, name).proj_fprop.num_sm = 99
    assert getattr(mb_overlap, name).proj_fprop.num_sm == 24


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownPresetError, match="userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"):
        preset("userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen4096")


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="userbuffers_bf16_h100"):
        mb_overlap.presets.userbuffers_bf16_h100  # noqa: B018
