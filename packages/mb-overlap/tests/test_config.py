"""Configuration classes: fields, defaults, requested fields, and conversion for Transformer Engine."""

from dataclasses import MISSING, fields

import pytest

import mb_overlap
from mb_overlap import (
    BulkOverlapCfg,
    CommOverlapConfig,
    PipelineOverlapCfg,
    RingExchangeOverlapCfg,
    TPOverlapCfg,
    TransformerLayerTPOverlapCfg,
    to_transformer_engine,
)

GEMMS = [
    "qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad", "qkv_fprop",
    "proj_dgrad", "fc1_fprop", "fc2_dgrad", "proj_fprop", "fc2_fprop",
]  # fmt: skip


def defaults(section):
    return {
        field.name: "required" if field.default is MISSING else field.default for field in fields(section)
    }


def test_pipeline_method_communicates_in_the_output_type_by_default():
    required = dict.fromkeys(["num_sm", "cga_size", "num_splits", "set_sm_margin"], "required")
    assert defaults(PipelineOverlapCfg) == required | {
        "fp8_buf": False,
        "atomic_gemm": False,
        "method": "pipeline",
    }


def test_other_methods_have_the_documented_defaults():
    assert defaults(BulkOverlapCfg) == {
        "num_sm": "required", "cga_size": "required", "set_sm_margin": "required", "method": "bulk",
    }  # fmt: skip
    assert RingExchangeOverlapCfg() == RingExchangeOverlapCfg(
        aggregate=False,
        method="ring_exchange",
        num_sm=1,
        cga_size=1,
        set_sm_margin=False,
        fp8_buf=False,
        atomic_gemm=False,
    )


@pytest.mark.parametrize("method", [PipelineOverlapCfg, RingExchangeOverlapCfg, BulkOverlapCfg])
def test_every_method_is_a_tp_overlap_config(method):
    assert issubclass(method, TPOverlapCfg)


def test_a_layer_has_ten_gemms():
    assert defaults(TransformerLayerTPOverlapCfg) == dict.fromkeys(GEMMS, "required")


def test_gemms_without_an_entry_are_omitted_for_transformer_engine():
    layer = TransformerLayerTPOverlapCfg(
        **{**dict.fromkeys(GEMMS), "fc1_wgrad": BulkOverlapCfg(num_sm=4, cga_size=2, set_sm_margin=False)}
    )
    assert to_transformer_engine(layer) == {
        "fc1_wgrad": {"num_sm": 4, "cga_size": 2, "set_sm_margin": False, "method": "bulk"}
    }


def test_requested_fields_are_those_that_are_set():
    config = CommOverlapConfig(tp_comm_overlap=False, overlap_grad_reduce=False, bucket_size=0)
    assert config.requested_fields() == {
        "tp_comm_overlap": False,
        "overlap_grad_reduce": False,
        "bucket_size": 0,
    }


def test_the_section_has_one_required_field():
    assert [name for name, default in defaults(CommOverlapConfig).items() if default is not None] == [
        "tp_comm_overlap"
    ]


def test_every_public_name_resolves():
    assert [name for name in mb_overlap.__all__ if not hasattr(mb_overlap, name)] == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        mb_overlap.no_such_name  # noqa: B018
